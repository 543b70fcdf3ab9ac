"""A token bucket: so much a minute, saved up for a minute at most."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]  # seconds, never going back


class Bucket:
    """Fills evenly with `per_minute` a minute up to that amount, and may be overdrawn.

    (The algorithm is the token bucket of traffic shaping; debt makes up for what is known late,
    such as the length of an answer.)
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._filled_at = clock()

    @property
    def level(self) -> float:
        """What is in it now; negative while it is overdrawn. Mutates nothing that can be seen."""
        now = self._clock()
        filled = (now - self._filled_at) * self.per_minute / 60
        self._level = min(self._level + filled, float(self.per_minute))
        self._filled_at = now
        return self._level

    def take(self, amount: float) -> None:
        """Takes it out, whatever is there. Mutates."""
        self._level = self.level - amount

    def wait_s(self, amount: float) -> float:
        """Seconds until so much is there; of more than it holds, until it is full. 0: now."""
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing) * 60 / self.per_minute

    def resize(self, per_minute: int) -> None:
        """Another rate from now on; what was used or is owed stays so. Mutates."""
        used = self.per_minute - self.level
        self.per_minute = per_minute
        self._level = per_minute - used
