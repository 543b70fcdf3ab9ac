"""A load beside the event loop: progress, errors, and a stop in the middle."""

import asyncio
import threading
from contextlib import suppress

import pytest

from twostroke.backends.hookspecs import Progress
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.errors import BundleError, EngineError, InstallError, UnavailableError
from twostroke.server.loading import Loading
from twostroke.server.served import Settings
from twostroke.types import ConstraintKind

SETTINGS = Settings(ModelConfig(name="a", source="x"), SchedulerConfig())


def nothing(stage):
    pass


async def test_a_model_arrives_and_its_stages_are_told(echo_model):
    stages = []

    def load(settings, report):
        report(Progress("trace", 0.25))
        return echo_model(settings.model.name)

    loading = Loading(SETTINGS, load, stages.append)
    loading.start()
    assert (await loading.done).name == "a"
    assert stages == ["trace (25%)"]


async def test_the_vocabulary_of_grammars_is_read_before_a_model_serves(echo_model, monkeypatch):
    # Later it would hold the GIL for half a second, and with it all that are being streamed.
    model, seen = echo_model("a"), []
    compile_constraint = model.engine.compile

    def noting(constraint):
        seen.append((constraint.kind, threading.current_thread().name, loading.done.done()))
        return compile_constraint(constraint)

    monkeypatch.setattr(model.engine, "compile", noting)
    loading = Loading(SETTINGS, lambda *_: model, nothing)
    loading.start()
    await loading.done
    assert seen == [(ConstraintKind.JSON_OBJECT, "twostroke-loading", False)]


async def test_a_model_that_cannot_be_constrained_is_served(echo_model, monkeypatch):
    model = echo_model("a")

    def refuse(_):
        raise InstallError("llguidance is not installed")

    monkeypatch.setattr(model.engine, "compile", refuse)
    loading = Loading(SETTINGS, lambda *_: model, nothing)
    loading.start()
    assert await loading.done is model


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (BundleError("weights.bin is truncated"), BundleError, "weights.bin is truncated"),
        (KeyError("x"), EngineError, "KeyError while 'a' was being loaded"),
    ],
)
async def test_an_error_is_the_outcome(raised, kind, message):
    def load(settings, report):
        raise raised

    loading = Loading(SETTINGS, load, nothing)
    loading.start()
    with pytest.raises(kind, match=message):
        await loading.done


async def test_a_stop_ends_the_load_at_its_next_report():
    reached, stopped = threading.Event(), threading.Event()

    def load(settings, report):
        reached.set()
        assert stopped.wait(60)
        report(Progress("quantise", 0.5))
        raise AssertionError("the load went on after a stop")

    loading = Loading(SETTINGS, load, nothing)
    loading.start()
    await asyncio.to_thread(reached.wait)
    loading.stop()
    stopped.set()
    with pytest.raises(UnavailableError, match="stopped"):
        await loading.done


async def test_a_model_that_was_loaded_too_late_is_closed():
    reached, stopped, closed = threading.Event(), threading.Event(), threading.Event()

    class Late:
        name = "a"

        def close(self):
            closed.set()

    def load(settings, report):
        with suppress(BaseException):  # as native code does that the exception comes too late for
            reached.set()
            assert stopped.wait(60)
        return Late()

    loading = Loading(SETTINGS, load, nothing)
    loading.start()
    await asyncio.to_thread(reached.wait)
    loading.stop()
    stopped.set()
    with pytest.raises(UnavailableError, match="stopped"):
        await loading.done
    assert closed.is_set()
