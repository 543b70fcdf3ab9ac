"""How an engine is: ready, or lost its sessions and is trying to get new ones.

    ready -> unhealthy -> rebuilding -> ready
                 ^             |
                 +-------------+-> failed, after too many tries in a row

Between two tries there is a pause that grows, so that a device which is really gone costs little,
and differs a little at random, so that engines which lost one device together do not all come
back in the same moment (exponential backoff with jitter).
"""

from __future__ import annotations

import enum
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from twostroke.errors import UnhealthyError
from twostroke.life.timeline import Clock

FAILURE_KINDS = ("run", "hang", "device_lost", "memory", "logits")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
_JITTER = 0.25  # of a pause, which is that much shorter at most


class HealthState(enum.StrEnum):
    """What an engine is doing about its sessions."""

    READY = "ready"
    UNHEALTHY = "unhealthy"  # lost them, and waits for the time of its next try
    REBUILDING = "rebuilding"
    FAILED = "failed"  # gave up: only a restart helps


@dataclass(frozen=True, slots=True)
class Health:
    """A snapshot. `reason` and `since_s` (how long ago it was lost) are of the present outage.

    `num_tries` were made since an engine last answered anything; `num_rebuilds` that worked and
    `failures` by kind count since the start; `num_hung_threads` never came back from a run.
    """

    state: HealthState = HealthState.READY
    reason: str = ""
    since_s: float | None = None
    next_try_s: float | None = None  # from now
    num_tries: int = 0
    num_rebuilds: int = 0
    num_hung_threads: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


def pause_s(num_tries: int, chance: float) -> float:
    """Seconds before the next try, after so many that failed; `chance` lies in [0, 1)."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num_tries, 16))
    return longest * (1 - _JITTER * chance)


class EngineHealth:
    """Owns the state. Changed by the engine thread or the watchdog's, read by any."""

    def __init__(
        self, clock: Clock, max_tries: int, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._max_tries = max_tries
        self._chance = chance
        self._lock = threading.Lock()
        self._state = HealthState.READY
        self._reason = ""
        self._lost_at: float | None = None
        self._next_try_at: float | None = None
        self._num_tries = self._num_rebuilds = 0
        self._hung: list[threading.Thread] = []
        self._failures: Counter[str] = Counter()

    @property
    def is_ready(self) -> bool:
        """Whether requests can be served."""
        return self._state is HealthState.READY

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next try is due; None: there will be none."""
        at = self._next_try_at
        return None if at is None else max(0.0, at - self._clock())

    def snapshot(self) -> Health:
        """How it is right now."""
        with self._lock:
            lost_at = self._lost_at
            return Health(
                self._state,
                self._reason,
                None if lost_at is None else self._clock() - lost_at,
                self.pause_s,
                self._num_tries,
                self._num_rebuilds,
                self.num_hung_threads,
                dict(self._failures),
            )

    def note_failure(self, kind: str) -> None:
        """Counts a failure of one of the FAILURE_KINDS."""
        with self._lock:
            self._failures[kind] += 1

    def note_hung(self, thread: threading.Thread) -> None:
        """A thread is in a run that was given up."""
        with self._lock:
            self._hung.append(thread)

    @property
    def num_hung_threads(self) -> int:
        """Those that are still in it."""
        return sum(thread.is_alive() for thread in self._hung)

    def note_answer(self) -> None:
        """A run for a request went well: what comes next is a new outage with short pauses."""
        if self._num_tries and self._state is HealthState.READY:
            with self._lock:
                self._num_tries = 0

    def lose(self, reason: str) -> None:
        """The sessions are of no use any more."""
        with self._lock:
            if self._lost_at is None:
                self._lost_at = self._clock()
            self._wait_or_give_up(reason)

    def begin_try(self) -> None:
        """New sessions are being opened."""
        with self._lock:
            self._state = HealthState.REBUILDING
            self._next_try_at = None
            self._num_tries += 1

    def note_failed_try(self, reason: str) -> None:
        """That did not work."""
        with self._lock:
            self._wait_or_give_up(reason)

    def recover(self) -> None:
        """New sessions are open and have answered a trial."""
        with self._lock:
            self._state, self._reason, self._lost_at = HealthState.READY, "", None
            self._num_rebuilds += 1

    def give_up(self, reason: str) -> None:
        """Nothing more is tried."""
        with self._lock:
            if self._lost_at is None:
                self._lost_at = self._clock()
            self._reason = reason
            self._state, self._next_try_at = HealthState.FAILED, None

    def refusal(self) -> UnhealthyError:
        """What a request gets that comes now."""
        now = self.snapshot()
        if now.state is HealthState.FAILED:
            return UnhealthyError(
                f"This model is out of order ({now.reason}) and nothing more is tried. Restart "
                f"the server.",
                retry_after_s=math.ceil(LONGEST_PAUSE_S),
            )
        return UnhealthyError(
            f"This model has lost its sessions ({now.reason}); they are being made anew. Send the "
            f"request again in a moment.",
            retry_after_s=self._retry_after_s(now),
        )

    def loss(self) -> UnhealthyError:
        """What a request ends with that was in flight."""
        now = self.snapshot()
        is_over = now.state is HealthState.FAILED
        advice = "Restart the server." if is_over else "Send the request again in a moment."
        return UnhealthyError(
            f"The model lost its sessions while this request was in flight: {now.reason}. {advice}",
            retry_after_s=self._retry_after_s(now),
        )

    def _retry_after_s(self, now: Health) -> int:
        if now.state is HealthState.FAILED:
            return math.ceil(LONGEST_PAUSE_S)
        return 1 + math.ceil(now.next_try_s or 0.0)

    def _wait_or_give_up(self, reason: str) -> None:
        self._reason = reason
        if self._num_tries >= self._max_tries:
            self._state, self._next_try_at = HealthState.FAILED, None
        else:
            self._state = HealthState.UNHEALTHY
            self._next_try_at = self._clock() + pause_s(self._num_tries, self._chance())
