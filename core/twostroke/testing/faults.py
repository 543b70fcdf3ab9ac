"""Faults on order, for a backend that fails as told (`FaultyPlugin`) around any other one.

    faults = Faults()
    plugins = load_plugins(extra=[FaultyPlugin(echo, faults)])
    ...
    faults.throw("decode", after=2)     # the third decode run from now raises
    faults.hang("prefill")              # the next prefill run ends when it is interrupted
    faults.hang("decode", deaf=True)    # … or only after `faults.release()`
    faults.lose_device()                # every run fails until the device is opened again
    faults.fail_opening(2)              # the next two sessions or devices cannot be opened
    faults.refuse_allocations(1)
    faults.poison("decode")             # the next decode run answers NaN

What was ordered happens once; `times` orders several in a row. One `Faults` outlives the backends
that are opened with it, so a test can follow an engine through its recovery.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

from twostroke.errors import BackendUnavailableError, DeviceLostError, EngineError, OutOfMemoryError
from twostroke.types import Stroke

Kind = Literal["throw", "hang", "deaf", "lost", "memory", "nan"]


@dataclass(slots=True)
class _Order:
    kind: Kind
    after: int  # runs that still go well
    times: int


@dataclass(slots=True)
class _Lane:
    """What was ordered for one stroke."""

    orders: list[_Order] = field(default_factory=list)

    def take(self) -> Kind | None:
        if not self.orders:
            return None
        order = self.orders[0]
        if order.after:
            order.after -= 1
            return None
        order.times -= 1
        if not order.times:
            self.orders.pop(0)
        return order.kind


class Faults:
    """What is ordered, and what has happened. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes = {stroke: _Lane() for stroke in Stroke}
        self._is_lost = False
        self._num_failed_openings = self._num_refused = 0
        self._released = threading.Event()
        self.hanging = threading.Event()  # set while a run hangs
        self.num_hanging = 0
        self.num_devices_opened = self.num_open_sessions = self.num_open_devices = 0

    def throw(self, stroke: str, *, after: int = 0, times: int = 1) -> None:
        """A run raises EngineError."""
        self._order(stroke, "throw", after, times)

    def hang(self, stroke: str, *, deaf: bool = False, after: int = 0, times: int = 1) -> None:
        """A run lasts until it is interrupted; a `deaf` one until `release`, and then goes well."""
        self._released.clear()
        self._order(stroke, "deaf" if deaf else "hang", after, times)

    def release(self) -> None:
        """Ends every run that hangs, and the waiting of those to come."""
        self._released.set()

    def poison(self, stroke: str, *, after: int = 0, times: int = 1) -> None:
        """A run answers logits that are no numbers."""
        self._order(stroke, "nan", after, times)

    def exhaust(self, stroke: str, *, after: int = 0, times: int = 1) -> None:
        """A run finds no memory for its workspace."""
        self._order(stroke, "memory", after, times)

    def lose_device(self, stroke: str | None = None, *, after: int = 0) -> None:
        """Every run fails from now on, or from that run on, until the device is opened again."""
        if stroke is None:
            self._is_lost = True
        else:
            self._order(stroke, "lost", after, 1)

    def fail_opening(self, times: int) -> None:
        """So many devices cannot be opened."""
        self._num_failed_openings = times

    def refuse_allocations(self, times: int) -> None:
        """So many buffers are refused."""
        self._num_refused = times

    def clear(self) -> None:
        """Takes back what was ordered and has not happened."""
        with self._lock:
            self._lanes = {stroke: _Lane() for stroke in Stroke}
            self._num_failed_openings = self._num_refused = 0

    def _order(self, stroke: str, kind: Kind, after: int, times: int) -> None:
        with self._lock:
            self._lanes[Stroke(stroke)].orders.append(_Order(kind, after, times))

    def open_device(self) -> None:
        """Called when a device is opened, which mends what was lost.

        Raises:
            BackendUnavailableError: as ordered.
        """
        with self._lock:
            if self._num_failed_openings:
                self._num_failed_openings -= 1
                raise BackendUnavailableError("The device cannot be opened, as was ordered.")
            self._is_lost = False
            self.num_devices_opened += 1
            self.num_open_devices += 1

    def allocate(self) -> None:
        """Called for each buffer. Raises OutOfMemoryError as ordered."""
        with self._lock:
            if self._num_refused:
                self._num_refused -= 1
                raise OutOfMemoryError("No memory for a buffer, as was ordered.")

    def before_run(self, stroke: Stroke, is_cut: threading.Event) -> bool:
        """Called before each run; True where its logits must be NaN.

        Raises:
            EngineError, DeviceLostError, MemoryError: as ordered.
        """
        with self._lock:
            kind = self._lanes[stroke].take()
            self._is_lost |= kind == "lost"
            if self._is_lost:
                raise DeviceLostError("The device is lost, as was ordered.")
        if kind == "throw":
            raise EngineError(f"A {stroke.value} run failed, as was ordered.")
        if kind == "memory":
            raise MemoryError(f"No workspace for a {stroke.value} run, as was ordered.")
        if kind in ("hang", "deaf"):
            self._hang(self._released if kind == "deaf" else is_cut)
            if kind == "hang":
                raise EngineError(f"A {stroke.value} run was interrupted.")
        return kind == "nan"

    def _hang(self, until: threading.Event) -> None:
        with self._lock:
            self.num_hanging += 1
        self.hanging.set()
        while not until.wait(0.02) and not self._released.is_set():
            pass
        with self._lock:
            self.num_hanging -= 1
            if not self.num_hanging:
                self.hanging.clear()
