"""Loading beside the event loop: progress, errors, and a stop in the middle."""

import asyncio
import threading
from contextlib import suppress

import pytest

from twostroke.backends.hookspecs import Progress
from twostroke.config.schema import Config, ModelConfig
from twostroke.errors import BundleError, EngineError, InstallError
from twostroke.server.loading import Loading
from twostroke.server.models import Models
from twostroke.types import ConstraintKind


def config(*names):
    return Config(models=tuple(ModelConfig(name=name, source="x") for name in names))


async def test_models_arrive_one_after_the_other(echo_model):
    models = Models(["a", "b"])
    seen = []

    def load(model_config, report):
        report(Progress("trace", 0.25))
        seen.append(model_config.name)
        return echo_model(model_config.name)

    loading = Loading(config("a", "b"), models, load)
    loading.start()
    await loading.done
    assert seen == ["a", "b"]
    assert [model.name for model in models.ready()] == ["a", "b"]
    assert models.is_ready
    assert models.loading() == {}


async def test_the_vocabulary_of_grammars_is_read_before_a_model_serves(echo_model, monkeypatch):
    # Later it would hold the GIL for half a second, and with it all that are being streamed.
    models, model, seen = Models(["a"]), echo_model("a"), []
    compile_constraint = model.engine.compile

    def noting(constraint):
        seen.append((constraint.kind, threading.current_thread().name, models.is_ready))
        return compile_constraint(constraint)

    monkeypatch.setattr(model.engine, "compile", noting)
    loading = Loading(config("a"), models, lambda *_: model)
    loading.start()
    await loading.done
    assert seen == [(ConstraintKind.JSON_OBJECT, "twostroke-loading", False)]
    assert models.is_ready


async def test_a_model_that_cannot_be_constrained_is_served(echo_model, monkeypatch):
    models, model = Models(["a"]), echo_model("a")

    def refuse(_):
        raise InstallError("llguidance is not installed")

    monkeypatch.setattr(model.engine, "compile", refuse)
    loading = Loading(config("a"), models, lambda *_: model)
    loading.start()
    await loading.done
    assert models.is_ready


async def test_the_stage_is_known_while_a_model_loads(echo_model):
    models = Models(["a", "b"])
    loop, noted, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def load(model_config, report):
        report(Progress("quantise", 0.5))
        loop.call_soon_threadsafe(noted.set)
        assert go_on.wait(60)
        return echo_model(model_config.name)

    loading = Loading(config("a", "b"), models, load)
    loading.start()
    await noted.wait()
    assert models.loading() == {"a": "quantise (50%)", "b": "waiting"}
    go_on.set()
    await loading.done


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (BundleError("weights.bin is truncated"), BundleError, "weights.bin is truncated"),
        (KeyError("x"), EngineError, "'a' could not be loaded: KeyError"),
    ],
)
async def test_the_first_error_is_the_outcome(raised, kind, message):
    def load(model_config, report):
        raise raised

    loading = Loading(config("a", "b"), Models(["a", "b"]), load)
    loading.start()
    with pytest.raises(kind, match=message):
        await loading.done


async def test_a_stop_ends_the_load_at_its_next_report():
    reached, stopped = threading.Event(), threading.Event()

    def load(model_config, report):
        reached.set()
        assert stopped.wait(60)
        report(Progress("quantise", 0.5))
        raise AssertionError("the load went on after a stop")

    models = Models(["a"])
    loading = Loading(config("a"), models, load)
    loading.start()
    await asyncio.to_thread(reached.wait)
    loading.stop()
    stopped.set()
    await loading.done
    assert not models.is_ready


async def test_a_model_that_was_loaded_too_late_is_closed():
    reached, stopped, closed = threading.Event(), threading.Event(), threading.Event()

    class Late:
        name = "a"

        def close(self):
            closed.set()

    def load(model_config, report):
        with suppress(BaseException):  # as native code does that the exception comes too late for
            reached.set()
            assert stopped.wait(60)
        return Late()

    models = Models(["a"])
    loading = Loading(config("a"), models, load)
    loading.start()
    await asyncio.to_thread(reached.wait)
    loading.stop()
    stopped.set()
    await loading.done
    assert closed.is_set()
    assert not models.is_ready
