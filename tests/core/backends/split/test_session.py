"""What carries a run across a cut, on fakes: order, copies, interruption, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twostroke.backends import Device, Placement
from twostroke.backends.ort import HostBuffer
from twostroke.backends.protocol import TensorSpec
from twostroke.backends.split import SplitBackend
from twostroke.backends.split.buffers import TwoBuffers
from twostroke.errors import BundleError, ContractError, EngineError
from twostroke.types import Stroke

IDS = TensorSpec("input_ids", ("batch", "sequence"), "int64")
HIDDEN = TensorSpec("hidden.0", ("batch", "sequence", 4), "float32")
LOGITS = TensorSpec("logits", ("batch", "sequence", 8), "float32")


class FakeBinding:
    def __init__(self, log: list[str], name: str, inputs: Any, outputs: Any) -> None:
        self.log, self.name, self.inputs, self.outputs = log, name, inputs, outputs
        self.while_running = lambda: None

    def run(self) -> None:
        self.log.append(self.name)
        self.while_running()
        (source,), (target,) = self.inputs.values(), self.outputs.values()
        values = source.read()  # token ids [batch, sequence], or hidden states with a width
        if values.ndim == 2:
            values = values[..., None]
        values = values.max(-1, keepdims=True) + 1
        target.write(np.broadcast_to(values, target.shape).astype(np.float32))

    def interrupt(self) -> None:
        self.log.append(f"interrupt {self.name}")


class FakeSession:
    def __init__(self, log: list[str], name: str, inputs: list, outputs: list) -> None:
        self.log, self.name, self.is_closed = log, name, False
        self.inputs = {spec.name: spec for spec in inputs}
        self.outputs = {spec.name: spec for spec in outputs}
        self.placement = Placement(f"{name}Provider", {f"{name}Provider": 3})

    def bind(self, inputs: Any, outputs: Any) -> FakeBinding:
        self.binding = FakeBinding(self.log, self.name, inputs, outputs)
        return self.binding

    def close(self) -> None:
        self.is_closed = True


class FakeBackend:
    has_row_views = touches_lazily = True

    def __init__(self, name: str, session: Any) -> None:
        self.name, self.device, self._session = name, Device(0, f"a {name}", "cpu"), session

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> HostBuffer:
        return HostBuffer(np.zeros(shape, dtype))

    def open_session(self, graph: Any, stroke: Stroke) -> Any:
        if isinstance(self._session, Exception):
            raise self._session
        return self._session

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def pair(log, tmp_path) -> SplitBackend:
    front = FakeBackend("front", FakeSession(log, "front", [IDS], [HIDDEN]))
    back = FakeBackend("back", FakeSession(log, "back", [HIDDEN], [LOGITS]))
    return SplitBackend(front, back, 2, {"decode.onnx": ("first.onnx", "rest.onnx")})


@pytest.fixture
def session(pair, tmp_path):
    return pair.open_session(tmp_path / "decode.onnx", Stroke.DECODE)


def bound(pair, session):
    ids = pair.allocate((1, 2), "int64", on_host=True)
    logits = pair.allocate((1, 2, 8), "float32", on_host=True)
    return ids, logits, session.bind({"input_ids": ids}, {"logits": logits})


def test_from_outside_it_is_one_graph(session):
    assert list(session.inputs) == ["input_ids"]
    assert list(session.outputs) == ["logits"]
    assert session.placement.requested == "frontProvider+backProvider"
    assert session.placement.nodes == {"frontProvider": 3, "backProvider": 3}


def test_hidden_states_are_carried_over_in_each_run(pair, session, log):
    ids, logits, binding = bound(pair, session)
    for number in (5, 9):
        ids.write(np.full((1, 2), number))
        binding.run()
        assert (logits.read() == number + 2).all()
    assert log == ["front", "back"] * 2


def test_logits_take_no_memory_on_the_front(pair, session):
    _, logits, _ = bound(pair, session)
    assert isinstance(logits, TwoBuffers)
    assert logits._front is None


def test_what_was_written_before_binding_reaches_the_front():
    made = TwoBuffers(lambda: HostBuffer(np.zeros(2, "int64")), HostBuffer(np.zeros(2, "int64")))
    made.write(np.array([3, 4]))
    assert made.front.read().tolist() == [3, 4]
    made.write(np.array([5, 6]))
    assert (made.front.read().tolist(), made.back.read().tolist()) == ([5, 6], [5, 6])


def test_an_interruption_in_the_front_spares_the_back(pair, session, log):
    _, _, binding = bound(pair, session)
    pair.front.open_session(None, Stroke.DECODE).binding.while_running = binding.interrupt
    with pytest.raises(EngineError, match="between its two halves"):
        binding.run()
    assert "back" not in log
    pair.front.open_session(None, Stroke.DECODE).binding.while_running = lambda: None
    binding.run()  # one that came too late does not hurt the next
    assert log[-2:] == ["front", "back"]


def test_layers_have_their_backend(pair):
    assert [pair.of_layer(layer).name for layer in range(4)] == ["front", "front", "back", "back"]


def test_a_graph_that_is_not_cut_says_how_to(pair, tmp_path):
    with pytest.raises(
        BundleError, match=r"prefill\.onnx is not cut.*twostroke split .* --layers 2"
    ):
        pair.open_session(tmp_path / "prefill.onnx", Stroke.PREFILL)


def test_a_back_that_does_not_open_closes_the_front(log, tmp_path):
    front = FakeSession(log, "front", [IDS], [HIDDEN])
    broken = FakeBackend("back", BundleError("no such operator"))
    pair = SplitBackend(FakeBackend("front", front), broken, 2, {"decode.onnx": ("a", "b")})
    with pytest.raises(BundleError, match="no such operator"):
        pair.open_session(tmp_path / "decode.onnx", Stroke.DECODE)
    assert front.is_closed


def test_halves_that_share_nothing_are_refused(log, tmp_path):
    front = FakeBackend("front", FakeSession(log, "front", [IDS], [LOGITS]))
    back = FakeBackend("back", FakeSession(log, "back", [HIDDEN], [LOGITS]))
    pair = SplitBackend(front, back, 2, {"decode.onnx": ("a", "b")})
    with pytest.raises(ContractError, match="share no tensor"):
        pair.open_session(tmp_path / "decode.onnx", Stroke.DECODE)
