"""New sessions for an engine that lost its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twostroke.backends.protocol import Backend
from twostroke.engine.runner import Runner
from twostroke.errors import OutOfMemoryError
from twostroke.life.memory import MemoryPlan

Backends = tuple[Backend, Backend]  # of prefill and decode; perhaps one twice


class ReopenBackends(Protocol):
    """Opens the devices of an engine anew."""

    def __call__(self, *, is_hung: bool) -> Backends:
        """Closes the backends before, unless `is_hung`: then a run on them never came back.

        Raises:
            TwostrokeError: a device is not there.
        """
        ...


class Rebuild:
    """Makes a runner like the first, on the same backends or on ones that are opened anew.

    The memory plan is made again: with a hung run the memory of its sessions is still taken.
    """

    def __init__(
        self,
        backends: Backends,
        num_rows: int,
        plan: Callable[[Backend, Backend], MemoryPlan],
        open_runner: Callable[[Backend, Backend], Runner],
        reopen_backends: ReopenBackends | None = None,
    ) -> None:
        self._backends = backends
        self._num_rows = num_rows
        self._plan = plan
        self._open_runner = open_runner
        self._reopen_backends = reopen_backends

    def __call__(self, *, is_hung: bool) -> Runner:
        """A new runner; see `Reopen`.

        Raises:
            OutOfMemoryError: what it needs is not free.
            TwostrokeError: a device is not there, or a graph cannot be loaded.
        """
        if self._reopen_backends is not None:
            self._backends = self._reopen_backends(is_hung=is_hung)
        plan = self._plan(*self._backends)
        if plan.num_rows < self._num_rows:
            raise OutOfMemoryError(
                f"The memory that is free now holds {plan.num_rows} rows of KV cache instead of "
                f"{self._num_rows}. Free some, or restart with a smaller kv.budget."
            )
        return self._open_runner(*self._backends)
