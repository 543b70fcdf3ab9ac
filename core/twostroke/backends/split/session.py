"""Sessions of the two halves of a graph, run one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from twostroke.backends.capabilities import HOST_MEMORY, InterruptibleBinding, SharesMemory
from twostroke.backends.protocol import (
    Backend,
    Binding,
    Buffer,
    Placement,
    Session,
    TensorSpec,
)
from twostroke.backends.split.buffers import TwoBuffers
from twostroke.errors import ContractError, EngineError


class _Pair(Protocol):
    """The two backends; see `SplitBackend`."""

    front: Backend
    back: Backend


class SplitSession:
    """Both halves as one session: what crosses the cut is nobody else's business."""

    def __init__(self, backends: _Pair, front: Session, back: Session) -> None:
        self._backends = backends
        self._front, self._back = front, back
        self._crossing = tuple(name for name in front.outputs if name in back.inputs)
        if not self._crossing:
            raise ContractError("the halves of a graph share no tensor: split the bundle again.")
        spaces = [
            backend.memory_space if isinstance(backend, SharesMemory) else None
            for backend in (backends.front, backends.back)
        ]
        self._shares_host = spaces == [HOST_MEMORY, HOST_MEMORY]

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The declared inputs of both halves by name."""
        return self._outside({**self._front.inputs, **self._back.inputs})

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The declared outputs of both halves by name."""
        return self._outside({**self._front.outputs, **self._back.outputs})

    @property
    def placement(self) -> Placement:
        """Where the nodes of both halves run."""
        front, back = self._front.placement, self._back.placement
        nodes, strays = Counter(front.nodes), Counter(front.strays)
        nodes.update(back.nodes)
        strays.update(back.strays)
        requested = dict.fromkeys((front.requested, back.requested))
        brought = Counter(front.brought)
        brought.update(back.brought)
        return Placement("+".join(requested), dict(nodes), dict(strays), dict(brought))

    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> SplitBinding:
        """Ties each half's buffers to it, and buffers of the pair's own to what crosses."""
        sent, received = {}, {}
        for name, shape in self._crossing_shapes(inputs).items():
            dtype = self._front.outputs[name].dtype
            sent[name] = self._backends.front.allocate(shape, dtype, on_host=True)
            received[name] = sent[name]
            if not self._shares_host:
                received[name] = self._backends.back.allocate(shape, dtype, on_host=True)
        given = {**inputs, **outputs}
        return SplitBinding(
            _tie(self._front, {name: partial(_front, given[name]) for name in given}, sent),
            _tie(self._back, {name: partial(_back, given[name]) for name in given}, received),
            () if self._shares_host else tuple((sent[n], received[n]) for n in self._crossing),
        )

    def close(self) -> None:
        """Frees both sessions."""
        self._front.close()
        self._back.close()

    def _outside(self, specs: Mapping[str, TensorSpec]) -> Mapping[str, TensorSpec]:
        return {name: spec for name, spec in specs.items() if name not in self._crossing}

    def _crossing_shapes(self, inputs: Mapping[str, Buffer]) -> dict[str, tuple[int, ...]]:
        """Sizes of what crosses, from those that the bound inputs give the free dimensions."""
        sizes: dict[int | str, int] = {}
        for name, spec in self._front.inputs.items():
            sizes.update(zip(spec.shape, inputs[name].shape, strict=True))
        shapes = {}
        for name in self._crossing:
            declared = self._front.outputs[name].shape
            lacking = [size for size in declared if isinstance(size, str) and size not in sizes]
            if lacking:
                raise ContractError(
                    f"{name} has the free dimension {lacking[0]!r}, which no input has: split the "
                    "bundle again."
                )
            shapes[name] = tuple(s if isinstance(s, int) else sizes[s] for s in declared)
        return shapes


def _tie(
    half: Session, given: Mapping[str, Callable[[], Buffer]], crossing: Mapping[str, Buffer]
) -> Binding:
    def of(name: str) -> Buffer:
        return crossing[name] if name in crossing else given[name]()

    return half.bind({n: of(n) for n in half.inputs}, {n: of(n) for n in half.outputs})


def _front(buffer: Buffer) -> Buffer:
    return buffer.front if isinstance(buffer, TwoBuffers) else buffer


def _back(buffer: Buffer) -> Buffer:
    return buffer.back if isinstance(buffer, TwoBuffers) else buffer


class SplitBinding:
    """Runs the front half, carries the hidden states over, runs the back half."""

    def __init__(
        self, front: Binding, back: Binding, crossing: tuple[tuple[Buffer, Buffer], ...]
    ) -> None:
        self._halves = (front, back)
        self._crossing = crossing
        self._is_interrupted = False

    def run(self) -> None:
        """Runs both halves and waits. Mutates the bound outputs.

        Raises:
            EngineError: a half failed, or the run was interrupted between them.
        """
        front, back = self._halves
        self._is_interrupted = False
        front.run()
        for sent, received in self._crossing:
            received.write(sent.read())  # [batch, sequence, width]
        if self._is_interrupted:
            raise EngineError("the run was ended between its two halves")
        back.run()

    def interrupt(self) -> None:
        """Ends the run in progress, where the half that runs can or has not begun; any thread."""
        self._is_interrupted = True
        for half in self._halves:
            if isinstance(half, InterruptibleBinding):
                half.interrupt()
