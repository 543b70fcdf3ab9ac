"""Which token ids each row of the KV cache stands for, and what two of them have in common."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from twostroke.engine.sequence import Sequence
from twostroke.engine.token_bytes import common_tokens, first_ids, num_ids, token_bytes


class PrefixIndex:
    """The token ids of rows: of a running sequence as it stands, of a kept row as it was left.

    How many of them are in the row already, the cache knows. Without `has_answers` rows stand for
    prompts only.
    """

    def __init__(self, *, has_answers: bool = True) -> None:
        self._has_answers = has_answers
        self._running: dict[int, tuple[str, Sequence]] = {}
        self._kept: dict[int, tuple[str, bytes]] = {}  # scope and ids

    def hold(self, row: int, scope: str, sequence: Sequence) -> None:
        """From now on the row is the sequence's, to be shared within a scope."""
        self.drop(row)
        self._running[row] = (scope, sequence)

    def keep(self, row: int, num_tokens: int) -> None:
        """The row's sequence has ended with that many tokens in the row."""
        scope, sequence = self._running.pop(row)
        self._kept[row] = (scope, first_ids(self._ids(sequence), num_tokens))

    def move(self, source: int, target: int) -> None:
        """What was kept in one row is in another from now on."""
        self._kept[target] = self._kept.pop(source)

    def drop(self, row: int) -> None:
        """Forgets what a row holds; a row that is not known is fine."""
        self._running.pop(row, None)
        self._kept.pop(row, None)

    def rows(self) -> list[int]:
        """The rows that are known."""
        return [*self._running, *self._kept]

    def common(self, row: int, scope: str, prompt: bytes) -> int:
        """How many ids of a prompt the row has or will have; 0 in another scope."""
        if row in self._kept:
            held_scope, held = self._kept[row]
            return common_tokens(held, prompt) if held_scope == scope else 0
        held_scope, sequence = self._running[row]
        if held_scope != scope:
            return 0
        num_same = common_tokens(sequence.prompt_bytes, prompt)
        if num_same < len(sequence.prompt_ids):
            return num_same
        return common_tokens(self._ids(sequence), prompt)

    def contents(self, lengths: Mapping[int, int]) -> dict[int, tuple[str, bytes]]:
        """Scope and ids of each row of `lengths`, cut to its length."""
        held = dict(self._kept)
        for row, (scope, sequence) in self._running.items():
            held[row] = (scope, self._ids(sequence))
        return {
            row: (held[row][0], first_ids(held[row][1], num_tokens))
            for row, num_tokens in lengths.items()
        }

    def _ids(self, sequence: Sequence) -> bytes:
        if not self._has_answers:
            return sequence.prompt_bytes
        return sequence.prompt_bytes + token_bytes(sequence.answer_ids)


def unshared_tokens(contents: Mapping[int, tuple[str, bytes]]) -> dict[int, int]:
    """Of each row the tokens that no other row of its scope begins with as well.

    In order of their bytes, a row's longest common prefix with any other is with a neighbour.
    """
    ordered = sorted((scope, ids, row) for row, (scope, ids) in contents.items())
    shared = dict.fromkeys(contents, 0)
    for (scope, ids, row), (next_scope, next_ids, next_row) in pairwise(ordered):
        if scope == next_scope:
            num_same = common_tokens(ids, next_ids)
            shared[row] = max(shared[row], num_same)
            shared[next_row] = num_same
    return {row: num_ids(ids) - shared[row] for row, (_, ids) in contents.items()}
