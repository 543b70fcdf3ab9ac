"""The kit passes what is right and fails what is broken, for the right reason."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from twostroke.backends.protocol import ProbeResult
from twostroke.bundle import open_bundle
from twostroke.engine.build import open_runner
from twostroke.errors import BackendError
from twostroke.testing import echo, make_echo_bundle
from twostroke.testing.conformance import CONTEXT_TOKENS, NUM_ROWS, BackendConformance
from twostroke.testing.echo_session import EchoBinding, EchoSession
from twostroke.types import Stroke

DIALECTS = {name: dict.fromkeys(Stroke, name) for name in ("fused", "standard")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit") / "echo"
    return make_echo_bundle(folder, position_ids=True, dialects=("fused", "standard"))


class TestEcho(BackendConformance):
    tolerance = 0.0

    @pytest.fixture
    def spec(self):
        return echo.twostroke_backends()[0]

    @pytest.fixture
    def bundle(self, folder):
        return folder


class TestEchoWithoutRowViews(TestEcho):
    options = {"row_views": False}  # noqa: RUF012 - nobody changes it


class TestEchoConcatenating(TestEcho):
    @pytest.fixture
    def spec(self):
        return dataclasses.replace(echo.twostroke_backends()[0], dialect=DIALECTS["standard"])


class TestEchoConcatenatingWithoutViews(TestEchoConcatenating):
    options = {"row_views": False}  # noqa: RUF012 - nobody changes it


class CopiedRows(echo.EchoBuffer):
    def rows(self, start, count):
        copy = self.values[start : start + count].copy()
        return CopiedRows(copy, has_row_views=True)


class DirtyBuffers(echo.EchoBackend):
    def allocate(self, shape, dtype, *, on_host=False):
        return echo.EchoBuffer(np.ones(shape, dtype), has_row_views=True)


class CopyingBackend(echo.EchoBackend):
    def allocate(self, shape, dtype, *, on_host=False):
        return CopiedRows(np.zeros(shape, dtype), has_row_views=True)


class LeakyBinding(EchoBinding):
    """Every row sees the first row's logits."""

    def run(self):
        super().run()
        self._logits[1:] = self._logits[0]


class LeakySession(EchoSession):
    def bind(self, inputs, outputs):
        super().bind(inputs, outputs)
        values = [{name: b.values for name, b in side.items()} for side in (inputs, outputs)]
        return LeakyBinding(self, *values)


class GreedyIdle(EchoBinding):
    """A batch also spoils the token before the one it writes."""

    def run(self):
        super().run()
        rows = self._inputs["seqlens_k"].shape[0]
        for side in self._past if rows > 1 else ():
            side[np.arange(rows), :, np.maximum(self._inputs["seqlens_k"] - 1, 0)] = 9


class GreedyIdleSession(LeakySession):
    def bind(self, inputs, outputs):
        values = [{name: b.values for name, b in side.items()} for side in (inputs, outputs)]
        return GreedyIdle(self, *values)


class CopiedShapes(echo.EchoViews):
    def reshaped(self, shape):
        return CopiedShapes(np.zeros(shape, self.dtype), has_row_views=True)


class SharedShapes(echo.EchoBackend):
    def allocate(self, shape, dtype, *, on_host=False):
        return CopiedShapes(np.zeros(shape, dtype), has_row_views=True)


class Forgetful(EchoBinding):
    """A present keeps nothing of its past but the length."""

    def run(self):
        past, self._past = self._past, [np.zeros_like(side) for side in self._past]
        super().run()
        self._past = past


class ForgetfulSession(LeakySession):
    def bind(self, inputs, outputs):
        values = [{name: b.values for name, b in side.items()} for side in (inputs, outputs)]
        return Forgetful(self, *values)


class NeverClosed(EchoSession):
    def close(self):
        """Forgets nothing."""


def with_session(kind):
    class Backend(echo.EchoBackend):
        def open_session(self, graph, stroke):
            session = super().open_session(graph, stroke)
            return kind(self, session.graph, stroke)

    return Backend


def broken(kind, options=None):
    return kind(echo.probe().devices[0], options or echo.EchoOptions())


@pytest.mark.parametrize(
    ("backend", "test", "fault"),
    [
        (CopyingBackend, "test_views_of_rows_share_memory", "wrote elsewhere"),
        (with_session(LeakySession), "test_a_ragged_batch_equals_each_alone", "a batch of four"),
        (
            with_session(GreedyIdleSession),
            "test_an_idle_row_in_a_batch_keeps_its_tokens",
            "a row that idled",
        ),
        (SharedShapes, "test_views_in_other_shapes_share_memory", "wrote elsewhere"),
        (with_session(ForgetfulSession), "test_sequences_taking_turns_equal_each_alone", "row 0"),
    ],
)
def test_a_broken_backend_is_caught(folder, backend, test, fault):
    kit, opened = BackendConformance(), broken(backend)
    arguments = {"backend": opened}
    if "views" not in test:
        arguments = {
            "runner": open_runner(
                open_bundle(folder),
                opened,
                opened,
                num_rows=NUM_ROWS,
                context_tokens=CONTEXT_TOKENS,
                dialects=DIALECTS["standard" if "taking_turns" in test else "fused"],
            )
        }
    with pytest.raises(AssertionError, match=fault):
        getattr(kit, test)(**arguments)


def test_dirty_memory_is_caught():
    with pytest.raises(AssertionError, match="not all zeros"):
        BackendConformance().test_buffers_start_as_zeros_and_keep_what_is_written(
            broken(DirtyBuffers), (2, 5), "int64", on_host=True
        )


def test_a_session_that_never_closes_is_caught(folder):
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        backend = broken(with_session(NeverClosed))
        BackendConformance().test_a_closed_session_refuses_and_another_opens(
            lambda: open_runner(
                open_bundle(folder), backend, backend, num_rows=1, context_tokens=CONTEXT_TOKENS
            )
        )


@pytest.mark.parametrize("message", ["bad option", "no_such_option is bad"])
def test_a_refusal_that_names_too_little_is_caught(message):
    def refuse(device, options):
        raise BackendError(message)

    kit = BackendConformance()
    kit.options = {"row_views": True}
    spec = dataclasses.replace(echo.twostroke_backends()[0], open=refuse)
    with pytest.raises(AssertionError, match="does not name"):
        kit.test_an_unknown_option_is_refused_by_name(spec)


def test_an_option_that_is_swallowed_is_caught():
    spec = dataclasses.replace(
        echo.twostroke_backends()[0], open=lambda device, options: broken(echo.EchoBackend)
    )
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        BackendConformance().test_an_unknown_option_is_refused_by_name(spec)


def test_without_a_device_tests_are_skipped_with_the_reason():
    nothing = ProbeResult(reason="no such device on the test bench")
    spec = dataclasses.replace(echo.twostroke_backends()[0], probe=lambda: nothing)
    BackendConformance().test_the_probe_answers_devices_or_a_reason(spec)
    with pytest.raises(pytest.skip.Exception, match="no such device on the test bench"):
        BackendConformance().test_an_unknown_option_is_refused_by_name(spec)
