"""The echo backend: deterministic answers without ONNX Runtime, in microseconds.

Its "model" answers a separator, then the prompt again, then the end-of-sequence token. Each token
id is kept in the KV buffers, and the next token is computed from what the row's buffers hold, so
a wrong row, length, chunk or hole changes the answer. All other logits are small numbers hashed
from the row's whole history: temperature, seeds and penalties work as with a real model.

Not registered by default. Tests hand this module to `load_plugins(extra=[...])`; a package of
its own makes it a plugin with the entry point

    [project.entry-points.twostroke]
    echo = "twostroke.testing.echo"

Bundles for it are made by `twostroke.testing.bundles.make_echo_bundle`.

Options: `step_delay_s` (each decode run), `prefill_delay_s_per_token`, `fail_decode_runs`,
`fail_prefill_runs` and `nan_decode_runs` (lists of run numbers, counted from 0 within each
stroke), `row_views` (False: a device without views of rows), `lazy` (False: a device with memory of
its own, paid for when it is allocated), `memory_bytes` (how much that is; 0: no end of it).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.backends.hookspecs import hookimpl
from twostroke.backends.protocol import (
    API_VERSION,
    Array,
    Backend,
    BackendSpec,
    Buffer,
    Device,
    ProbeResult,
)
from twostroke.errors import BackendError
from twostroke.testing.echo_device import EchoDeviceBuffer, EchoMemory
from twostroke.testing.echo_graph import read_graph
from twostroke.testing.echo_session import EchoSession
from twostroke.types import Stroke

GARBAGE = -1  # no token


@dataclass(frozen=True, slots=True)
class EchoOptions:
    """The backend's options; see the module."""

    step_delay_s: float = 0.0
    prefill_delay_s_per_token: float = 0.0
    fail_decode_runs: tuple[int, ...] = ()
    fail_prefill_runs: tuple[int, ...] = ()
    nan_decode_runs: tuple[int, ...] = ()
    row_views: bool = True
    lazy: bool = True
    memory_bytes: int = 0


class EchoBuffer:
    """Host memory with the interface of a device's."""

    def __init__(self, values: Array, *, has_row_views: bool) -> None:
        self.values = values
        self._has_row_views = has_row_views

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.values.shape

    @property
    def dtype(self) -> str:
        """Numpy's name of the dtype."""
        return str(self.values.dtype)

    def rows(self, start: int, count: int) -> EchoBuffer:
        """A view of rows [start, start + count)."""
        if not self._has_row_views:
            raise BackendError("echo: row_views is off, so the engine must not ask for rows")
        return EchoBuffer(self.values[start : start + count], has_row_views=True)

    def give_back(self, start: int) -> bool:
        """Spoils what is given back, so that an engine that still reads it is found out."""
        self.values[:, :, start:] = GARBAGE
        return True

    def write(self, values: Array) -> None:
        """Copies values of the same shape and dtype in."""
        if values.shape != self.values.shape or values.dtype != self.values.dtype:
            raise BackendError(
                f"echo: {values.dtype}{list(values.shape)} was written to a buffer of "
                f"{self.dtype}{list(self.shape)}"
            )
        self.values[...] = values

    def read(self) -> Array:
        """The memory itself."""
        return self.values


class EchoViews(EchoBuffer):
    """Memory that can be seen in other shapes as well."""

    def reshaped(self, shape: tuple[int, ...]) -> EchoViews:
        """A view of the first elements."""
        values = self.values.reshape(-1)[: math.prod(shape)].reshape(shape)
        return EchoViews(values, has_row_views=True)


class EchoBackend:
    """The open "device". Counts its open sessions, so that tests can prove that all were closed."""

    name = "echo"

    def __init__(self, device: Device, options: EchoOptions) -> None:
        self.device = device
        self.options = options
        self.has_row_views = options.row_views
        self.touches_lazily = options.lazy
        self.memory = EchoMemory(options.memory_bytes)  # of a device that is not lazy
        self.num_open_sessions = 0
        self.num_runs = {Stroke.PREFILL: 0, Stroke.DECODE: 0}
        self.is_closed = False

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """A buffer of zeros, in the device's memory unless it is lazy or `on_host` is asked for.

        Raises:
            OutOfMemoryError: the device has less.
        """
        if not (on_host or self.options.lazy):
            values = self.memory.allocate(shape, dtype)
            return EchoDeviceBuffer(values, self.memory, has_row_views=self.has_row_views)
        kind = EchoViews if self.has_row_views else EchoBuffer
        return kind(np.zeros(shape, dtype), has_row_views=self.has_row_views)

    def open_session(self, graph: Path, stroke: Stroke) -> EchoSession:
        """Reads an echo graph.

        Raises:
            BundleError: the file is no echo graph.
        """
        facts = read_graph(graph)
        self.num_open_sessions += 1
        return EchoSession(self, facts, stroke)

    def close(self) -> None:
        """Forgets the device."""
        self.is_closed = True


def parse_options(options: Mapping[str, Any]) -> EchoOptions:
    """Checked options.

    Raises:
        BackendError: an unknown option (the message names the allowed ones) or a wrong type.
    """
    allowed = {field.name: field for field in dataclasses.fields(EchoOptions)}
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in allowed:
            raise BackendError(
                f"echo has no option {name!r}. Its options are {', '.join(sorted(allowed))}."
            )
        values[name] = _checked(name, value, allowed[name].default)
    return EchoOptions(**values)


def _checked(name: str, value: Any, default: Any) -> Any:
    is_bool = isinstance(value, bool)
    if isinstance(default, bool) and is_bool:
        return value
    if isinstance(default, float) and isinstance(value, int | float) and not is_bool and value >= 0:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        return tuple(int(item) for item in value)
    if type(default) is int and isinstance(value, int) and not is_bool and value >= 0:
        return value
    expected = {
        bool: "true or false",
        float: "a number of seconds",
        int: "a whole number",
        tuple: "a list of numbers",
    }
    raise BackendError(f"echo: {name} must be {expected[type(default)]}, not {value!r}.")


def probe() -> ProbeResult:
    """One device, always there."""
    device = Device(index=0, name="echo", kind="cpu", dtypes=frozenset({"float32"}))
    return ProbeResult(devices=(device,))


def open_backend(device: Device, options: Mapping[str, Any]) -> Backend:
    """Opens the echo backend; see the module for its options."""
    return EchoBackend(device, parse_options(options))


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """The echo backend's spec; its priority is so low that `auto` takes anything else first."""
    return [
        BackendSpec(
            name="echo",
            api_version=API_VERSION,
            summary="answers the prompt again, for tests",
            probe=probe,
            open=open_backend,
            priority=-1000,
        )
    ]
