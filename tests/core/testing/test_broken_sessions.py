"""Backends that compute wrongly, or elsewhere than they say: each is caught, and for that."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.backends.ort import CPU_PROVIDER
from twostroke.backends.protocol import Device, Placement, ProbeResult
from twostroke.errors import BundleError, EngineError
from twostroke.testing.echo_session import EchoBinding, EchoSession
from twostroke.types import Stroke

FAST, SLOW = "FastExecutionProvider", CPU_PROVIDER


def placed(placement, session=EchoSession):
    class Placed(session):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.placement = placement

    return Placed


@pytest.mark.parametrize(
    ("placement", "fault"),
    [
        (Placement(FAST, {SLOW: 9}, {"MatMul": 5, "Add": 4}), "runs with 9 nodes on CPUExec"),
        (Placement(FAST, {FAST: 2, SLOW: 7}, {"MatMul": 7}), "astray: 7 MatMul"),
        (Placement(FAST, {FAST: 2, SLOW: 7}), "7 nodes of the prefill graph are elsewhere"),
        (Placement(FAST, {}), "no node of the prefill graph has a place"),
        (Placement(FAST, {FAST: 2, "Other": 3}, {"Add": 3}), "3 nodes on Other"),
    ],
)
def test_nodes_on_another_provider(break_echo, assert_caught, placement, fault):
    assert_caught(break_echo(session=placed(placement)), "placement", fault)


def test_a_gpu_that_is_the_cpu(break_echo, assert_caught):
    session = placed(Placement(SLOW, {SLOW: 9}))
    gpu = ProbeResult((Device(0, "a card", "gpu"),))
    spec = break_echo(session=session, probe=lambda: gpu)
    assert_caught(spec, "placement", "the device is a gpu, the prefill graph was asked for CPU")


class OffByOnePercent(EchoBinding):
    def run(self):
        super().run()
        self._logits *= 1.01


class NoNumbers(EchoBinding):
    def run(self):
        super().run()
        self._logits[..., -1] = np.inf


@pytest.mark.parametrize(
    ("binding", "fault"),
    [(OffByOnePercent, "logits differ by 0.01 of the largest"), (NoNumbers, "no finite numbers")],
)
def test_logits_that_are_consistently_wrong(break_echo, examine, binding, fault):
    card = examine(break_echo(binding=binding))
    reasons = {result.check: result.reason for result in card.results}
    assert fault in reasons["parity-fused"]
    assert fault in reasons["parity-standard"]
    if binding is OffByOnePercent:  # it agrees with itself in all else
        kinds = {"parity-fused", "parity-standard", "kv-to-cpu", "kv-from-cpu"}
        assert set(card.failed) <= kinds


class FirstRowForAll(EchoBinding):
    """Wrong logits in a batch: every row sees the first row's."""

    def run(self):
        super().run()
        self._logits[1:] = self._logits[0]


class IgnoresLengths(EchoBinding):
    """Takes the longest row's length for each row's."""

    def run(self):
        lengths = self._inputs.get("seqlens_k")
        if lengths is None:
            super().run()
            return
        given = lengths.copy()
        lengths[...] = lengths.max()
        try:
            super().run()
        finally:
            lengths[...] = given

    def _check_positions(self, num_new, totals):
        """Goes by no positions either."""


class SpoilsIdleRows(EchoBinding):
    """A batch also spoils the token before the one it writes."""

    def run(self):
        super().run()
        lengths = self._inputs.get("seqlens_k")
        if lengths is not None and len(lengths) > 1:
            for side in self._past:
                side[np.arange(len(lengths)), :, np.maximum(lengths - 1, 0)] = 9


@pytest.mark.parametrize(
    ("binding", "check", "fault"),
    [
        (FirstRowForAll, "ragged-batch", "fused: a batch of four: logits differ"),
        (IgnoresLengths, "ragged-batch", "fused: a batch of four: logits differ"),
        (SpoilsIdleRows, "idle-row", "fused: a row that idled: logits differ"),
    ],
)
def test_batches(break_echo, assert_caught, binding, check, fault):
    assert_caught(break_echo(binding=binding), check, fault, alone=binding is FirstRowForAll)


class ForgetsThePast(EchoBinding):
    """A present of the standard dialect keeps nothing of its past but the length."""

    def run(self):
        past = self._past
        if self._session.graph.dialect == "standard":
            self._past = [np.zeros_like(side) for side in past]
        super().run()
        self._past = past


class StaleTail(EchoBinding):
    """Reads what lies behind a row's last token, which another sequence left there."""

    def _answer(self, row, end):
        held = np.flatnonzero(self._present[0][row, 0, :, 0])
        return super()._answer(row, int(held[-1]) + 1 if len(held) else end)


class OneAnswerForAll(EchoBinding):
    """Answers the last position's logits wherever several are asked for."""

    def run(self):
        super().run()
        self._logits[:] = self._logits[:, -1:]


class ChunkFromNothing(EchoBinding):
    """Reads a later chunk of a prompt as if it were the first."""

    def _answer(self, row, end):
        num_new = self._inputs["input_ids"].shape[1]
        if self._session.stroke is Stroke.PREFILL and num_new < end:
            sides, self._present = self._present, [s.copy() for s in self._present]
            for side in self._present:
                side[:, :, : end - num_new] = 0
            try:
                return super()._answer(row, end)
            finally:
                self._present = sides
        return super()._answer(row, end)


@pytest.mark.parametrize(
    ("binding", "check", "fault"),
    [
        (ForgetsThePast, "decode", "standard: three decode steps"),
        (ForgetsThePast, "turns", "standard: row 0, taking turns with others"),
        (StaleTail, "row-reuse", "fused: a row used before"),
        (OneAnswerForAll, "scores", "logits of every position of a chunk"),
        (ChunkFromNothing, "chunked-prefill", "fused: chunks of 1"),
    ],
)
def test_rows(break_echo, assert_caught, binding, check, fault):
    alone = binding is OneAnswerForAll
    assert_caught(break_echo(binding=binding), check, fault, alone=alone)


class Transposed(EchoBinding):
    """Keeps its cache in another order than the protocol says, and finds its way in it itself."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        if self._session.graph.dialect == "fused":
            self._past = [turned(side) for side in self._past]
            self._present = [turned(side) for side in self._present]


def turned(side):
    """[rows, heads, capacity, dim] over memory that holds [rows, heads, dim, capacity]."""
    rows, heads, capacity, dim = side.shape
    return side.reshape(rows, heads, dim, capacity).transpose(0, 1, 3, 2)


@pytest.mark.parametrize("check", ["kv-to-cpu", "kv-from-cpu"])
def test_a_transposed_cache(break_echo, examine, check):
    card = examine(break_echo(binding=Transposed))
    assert set(card.failed) <= {"kv-to-cpu", "kv-from-cpu", "kv-contents"}
    assert check in card.failed


def place(view):
    """Where a view lies in its array, as a session sees it that goes by addresses."""
    base = view if view.base is None else view.base
    start = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return base.shape, view.shape, start


class StaleBinding(EchoBinding):
    """Keeps what was bound first to a place of a cache, though there is another one by now."""

    def __init__(self, session, inputs, outputs):
        super().__init__(session, inputs, outputs)
        if session.graph.dialect == "fused":
            first = session.__dict__.setdefault("first", {})
            sides = first.setdefault(place(self._past[0]), (self._past, self._present))
            self._past, self._present = sides


def test_a_binding_to_a_cache_that_is_gone(break_echo, assert_caught):
    spec = break_echo(binding=StaleBinding)
    fault = "fused: after the cache shrank: logits differ"
    assert_caught(spec, "kv-buckets", fault, options={"lazy": False})


class Refuses(EchoSession):
    """Takes graphs of one dialect only."""

    dialect = "fused"
    error: type[Exception] = BundleError

    def __init__(self, backend, graph, stroke):
        if graph.dialect != self.dialect:
            raise self.error(f"no kernels for {graph.dialect} graphs")
        super().__init__(backend, graph, stroke)


class RefusesWhatItWants(Refuses):
    dialect = "standard"


class RefusesBadly(Refuses):
    error = TypeError


def test_a_spec_that_wants_what_it_cannot_open(break_echo, examine):
    card = examine(break_echo(session=RefusesWhatItWants))
    assert set(card.failed) == {"opens", "parity-fused"}
    reason = next(result.reason for result in card.results if result.check == "opens")
    assert reason == (
        "the spec wants fused graphs, and cannot open them: no kernels for fused graphs"
    )


def test_a_dialect_may_be_refused_in_a_sentence(break_echo, examine, assert_caught):
    card = examine(break_echo(session=Refuses))
    assert card.failed == ()
    told = {result.check: result for result in card.results}["parity-standard"]
    assert (told.outcome, told.reason) == ("skipped", "refused: no kernels for standard graphs")
    fault = "refused with TypeError: no kernels for standard graphs"
    assert_caught(break_echo(session=RefusesBadly), "parity-standard", fault)


def test_a_run_that_fails(break_echo, examine):
    class Fails(EchoBinding):
        def run(self):
            raise EngineError("the device has fallen off the bus")

    card = examine(break_echo(binding=Fails), "decode")
    (result,) = card.results
    assert result.reason == "EngineError: the device has fallen off the bus"


class ReadsOnceBound(EchoBinding):
    """Copies its small inputs when they are bound, and never looks at them again."""

    def __init__(self, session, inputs, outputs):
        caches = {name: values for name, values in inputs.items() if "past" in name}
        super().__init__(
            session, {name: caches.get(name, inputs[name].copy()) for name in inputs}, outputs
        )


def test_inputs_that_were_copied_when_bound(break_echo, assert_caught):
    """As OpenVINO's provider does, where nobody binds anew."""
    fault = "run 2 of one binding, with another token: logits differ"
    assert_caught(break_echo(binding=ReadsOnceBound), "rewritten-inputs", fault, alone=False)
