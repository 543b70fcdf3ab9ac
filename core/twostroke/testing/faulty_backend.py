"""A backend that fails as `Faults` says, around any other one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.backends.capabilities import InterruptibleBinding
from twostroke.backends.hookspecs import hookimpl
from twostroke.backends.protocol import (
    Backend,
    BackendSpec,
    Binding,
    Buffer,
    Device,
    Placement,
    Session,
    TensorSpec,
)
from twostroke.bundle.contract import LOGITS
from twostroke.testing.faults import Faults
from twostroke.types import Stroke


@dataclass(frozen=True)
class FaultyPlugin:
    """A plugin whose backends are those of another one, failing as `faults` says."""

    plugin: Any
    faults: Faults

    @hookimpl
    def twostroke_backends(self) -> list[BackendSpec]:
        """The other plugin's specs, with the same names."""
        return [self._around(spec) for spec in self.plugin.twostroke_backends()]

    def _around(self, spec: BackendSpec) -> BackendSpec:
        def open_faulty(device: Device, options: Mapping[str, Any]) -> Backend:
            self.faults.open_device()
            return FaultyBackend(spec.open(device, options), self.faults)

        return replace(spec, open=open_faulty)


class FaultyBackend:
    """An open device that fails as told; otherwise it is the one inside."""

    def __init__(self, backend: Backend, faults: Faults) -> None:
        self._backend = backend
        self._faults = faults
        self._is_closed = False
        self.name = backend.name
        self.device = backend.device
        self.has_row_views = backend.has_row_views
        self.touches_lazily = backend.touches_lazily

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """A buffer of the backend inside. Raises OutOfMemoryError as ordered."""
        self._faults.allocate()
        return self._backend.allocate(shape, dtype, on_host=on_host)

    def open_session(self, graph: Path, stroke: Stroke) -> FaultySession:
        """A session of the backend inside."""
        return FaultySession(self._backend.open_session(graph, stroke), stroke, self._faults)

    def close(self) -> None:
        """Closes the backend inside; doing so twice is harmless."""
        self._faults.num_open_devices -= not self._is_closed
        self._is_closed = True
        self._backend.close()


def faulty_pair(prefill: Backend, decode: Backend, faults: Faults) -> tuple[Backend, Backend]:
    """The backends of an engine, failing as `faults` says; one that serves both still does."""
    first = FaultyBackend(prefill, faults)
    return first, first if decode is prefill else FaultyBackend(decode, faults)


@dataclass(frozen=True)
class Mending:
    """Opens an engine's faulty backends again: the same ones, without what was lost."""

    backends: tuple[Backend, Backend]
    faults: Faults

    def __call__(self, *, is_hung: bool) -> tuple[Backend, Backend]:
        """The backends. Raises BackendUnavailableError as ordered."""
        self.faults.open_device()
        return self.backends


class FaultySession:
    """A session whose runs fail as told."""

    def __init__(self, session: Session, stroke: Stroke, faults: Faults) -> None:
        self._session = session
        self._stroke = stroke
        self._faults = faults
        self._is_open = True
        faults.num_open_sessions += 1
        self.inputs: Mapping[str, TensorSpec] = session.inputs
        self.outputs: Mapping[str, TensorSpec] = session.outputs
        self.placement: Placement = session.placement

    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> FaultyBinding:
        """Ties buffers, which are those of the backend inside."""
        binding = self._session.bind(inputs, outputs)
        return FaultyBinding(binding, outputs[LOGITS], self._stroke, self._faults)

    def close(self) -> None:
        """Closes the session inside; doing so twice is harmless."""
        self._faults.num_open_sessions -= self._is_open
        self._is_open = False
        self._session.close()


class FaultyBinding:
    """Runs that fail as told, and can be interrupted."""

    def __init__(self, binding: Binding, logits: Buffer, stroke: Stroke, faults: Faults) -> None:
        self._binding = binding
        self._logits = logits
        self._stroke = stroke
        self._faults = faults
        self._is_cut = threading.Event()

    def run(self) -> None:
        """Runs the binding inside, unless something else was ordered.

        Raises:
            EngineError: also as ordered.
        """
        self._is_cut = threading.Event()  # its own, so that no other run is ended
        is_nan = self._faults.before_run(self._stroke, self._is_cut)
        self._binding.run()
        if is_nan:
            self._logits.write(np.full(self._logits.shape, np.nan, np.float32))

    def interrupt(self) -> None:
        """Ends the run in progress."""
        self._is_cut.set()
        if isinstance(self._binding, InterruptibleBinding):
            self._binding.interrupt()
