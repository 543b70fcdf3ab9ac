"""Sessions of the CUDA provider, and runs that are recorded as CUDA graphs.

ONNX Runtime records the kernels that a run launches under a number, the run option `gpu_graph_id`,
and launches all of them at once whenever a run has that number (-1: as usual). A recorded run reads
and writes the addresses of the first one, so each binding has a number of its own, which no other
ever gets: nothing else is recorded over buffers that are gone. A session keeps what it recorded
until it is closed, and so the numbers are limited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twostroke.backends.ort import OrtBinding, OrtSession, onnxruntime
from twostroke.backends.ort.session import Bindable
from twostroke.backends.protocol import Buffer
from twostroke.errors import DeviceLostError, EngineError

MAX_RECORDED = 256
"""Of one session; a recorded step of a large model takes some megabytes of the device."""

_NOT_RECORDED = -1
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class GraphBooks:
    """What became of recording: `mode` is the option's value."""

    mode: str
    is_on: bool = False
    has_failed: bool = False
    reason: str | None = None  # why it is off, where it was not switched off
    num_recorded: int = 0
    num_replayed: int = 0
    _told: set[str] = field(default_factory=set)

    def give_up(self, reason: str) -> None:
        """Notes that no run is recorded from now on."""
        self.is_on, self.has_failed = False, True
        self.note(reason)

    def note(self, reason: str) -> None:
        """Notes, once in the log, why runs are not recorded."""
        self.reason = reason
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("decode runs without CUDA graphs: %s", reason)


class RecordedBinding(OrtBinding):
    """A binding whose first run is recorded. Its buffers never move."""

    __slots__ = ("_books", "_gives_up", "_number", "_options")

    def __init__(
        self,
        session: OrtSession,
        binding: Any,
        buffers: tuple[Buffer, ...],
        copied: Mapping[str, Bindable],
        *,
        number: int,
        books: GraphBooks,
        gives_up: Callable[[str], None],
    ) -> None:
        super().__init__(session, binding, buffers, copied)
        self._number = number
        self._books = books
        self._gives_up = gives_up
        self._options: Any = None

    def run(self) -> None:
        """As `OrtBinding.run`; the first one is recorded.

        Raises:
            EngineError: the run failed. Where recording did and need not be, it was run once more
                without, and none is recorded any more.
        """
        is_first = self._options is None
        if is_first:
            self._options = self._numbered(self._number)
        try:
            self._session.run(self._binding, self._copied, self._options)
        except DeviceLostError:
            raise
        except EngineError as fault:
            if not is_first or self._number == _NOT_RECORDED:
                raise
            self._number, self._options = _NOT_RECORDED, self._numbered(_NOT_RECORDED)
            self._gives_up(f"recording a run failed ({fault})")
            self._session.run(self._binding, self._copied, self._options)
        if self._number != _NOT_RECORDED:
            self._books.num_recorded += is_first
            self._books.num_replayed += not is_first

    def _numbered(self, number: int) -> Any:
        options = onnxruntime().RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(number))
        return options


class RecordingSession(OrtSession):
    """A session made with `enable_cuda_graph`; see `ReplaysRuns`."""

    def __init__(self, books: GraphBooks, *arguments: Any, **keywords: Any) -> None:
        """The arguments of `OrtSession` behind `books`, which are mutated."""
        super().__init__(*arguments, **keywords)
        self._books = books
        self._next_number = 1
        books.is_on, books.reason = True, None

    @property
    def replays_runs(self) -> bool:
        """Whether runs are recorded."""
        return self._books.is_on

    def _tied(
        self, binding: Any, buffers: tuple[Buffer, ...], copied: Mapping[str, Bindable]
    ) -> OrtBinding:
        number = self._next_number if self._books.is_on else _NOT_RECORDED
        if number > MAX_RECORDED:
            number = _NOT_RECORDED
            self._books.note(f"{MAX_RECORDED} kinds of runs were recorded, others are not")
        self._next_number += 1
        return RecordedBinding(
            self,
            binding,
            buffers,
            copied,
            number=number,
            books=self._books,
            gives_up=self._give_up,
        )

    def _give_up(self, reason: str) -> None:
        """Goes on without recording, unless that was asked for.

        Raises:
            EngineError: it was.
        """
        if self._books.mode == "on":
            raise EngineError(
                f"CUDA graphs are `on`, but {reason}. Set the option cuda_graphs to auto or off."
            )
        self._books.give_up(reason)
