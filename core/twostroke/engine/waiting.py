"""Who is next when a row is free: the queue of sequences that were not admitted yet.

The rule, in this order:

1. Every eighth admission goes to the sequence that has waited longest, whoever it is.
2. All others go to the lowest `priority` number.
3. Among equal ones to the scope that has been given least: start-time fair queueing (Goyal, Vin and
   Cheng 1996), where an admission costs the tokens that the sequence may come to in the KV cache.
   A scope that had nothing to wait for begins at what the last admission had, so that nobody saves
   up a share.
4. Within a scope to the one that came first.

Bounds that follow. No starvation: a sequence with k others before it by arrival is admitted among
the next 8 (k + 1). No flooding: while a scope waits, another of the same priority is given at most
its own share and one sequence more. Whoever is next is never passed over because it is large, so
that it gets its room as others end.
"""

from __future__ import annotations

from collections.abc import Iterator

from twostroke.engine.sequence import Sequence

OLDEST_TURN = 8
"""Which admissions take the oldest: every one in so many."""


class Waiting:
    """Owns the queue, and what each scope was given so far. Not thread-safe."""

    def __init__(self) -> None:
        self._queue: dict[int, Sequence] = {}  # by id(), in order of arrival
        self._due: Sequence | None = None
        self._num_admitted = 0
        self._now = 0  # virtual time: the share at which the last one was admitted
        self._shares: dict[str, int] = {}  # of scopes that were given more than that

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue.values())

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence at the end of its scope's line."""
        self._queue[id(sequence)] = sequence
        self._due = None

    def remove(self, sequence: Sequence) -> None:
        """Forgets one that will not be admitted."""
        del self._queue[id(sequence)]
        self._due = None

    @property
    def due(self) -> Sequence | None:
        """Who is next; None where nobody waits."""
        if self._due is None and self._queue:
            self._due = self._choose()
        return self._due

    def in_order(self) -> list[Sequence]:
        """All of them, about in the order in which they will be admitted as things stand."""
        return sorted(self, key=lambda s: (s.priority, self._share(s.scope)))

    def admit(self, sequence: Sequence) -> None:
        """Takes the one that is due out of the queue and charges its scope."""
        begin = self._share(sequence.scope)
        self.remove(sequence)
        self._num_admitted += 1
        self._now = max(self._now, begin)
        self._shares[sequence.scope] = begin + sequence.max_total_tokens
        self._shares = {scope: at for scope, at in self._shares.items() if at > self._now}

    def _choose(self) -> Sequence:
        if (self._num_admitted + 1) % OLDEST_TURN == 0:
            return next(iter(self))
        return min(self, key=lambda s: (s.priority, self._share(s.scope)))  # the first of equals

    def _share(self, scope: str) -> int:
        return max(self._now, self._shares.get(scope, 0))
