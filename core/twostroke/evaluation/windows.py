"""A text as the windows of token ids that a model is measured on.

A model has a context and a text may be longer, so the text is cut into overlapping windows. A
window brings up to `NEW_TOKENS` tokens that are scored, behind tokens that are context only: but
for the first window, every token is predicted from at least half a window. Where the model begins
its sequences with a token of its own (BOS), every window does, and a text's first token is scored
too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twostroke.errors import RequestError
from twostroke.types import TokenId

NUM_TOKENS = 2048  # of a text, where nobody says how many
WINDOW_TOKENS = 512
NEW_TOKENS = WINDOW_TOKENS // 2


@dataclass(frozen=True, slots=True)
class Text:
    """A text to measure on; `name` is the file's own, without its folder."""

    name: str
    content: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Window:
    """Token ids [tokens]; those from `num_context` on are scored, the first ones are not."""

    ids: tuple[TokenId, ...]
    num_context: int

    @property
    def num_scored(self) -> int:
        """How many tokens are predicted."""
        return len(self.ids) - self.num_context


def read_text(path: Path) -> Text:
    """Reads a text to measure on.

    Raises:
        RequestError: it is no file, or not UTF-8.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RequestError(f"The text {path} cannot be read: {error.strerror}.") from error
    try:
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"The text {path} is not UTF-8 (byte {error.start}); save it as plain UTF-8 text."
        ) from None
    return Text(path.name, content, hashlib.sha256(raw).hexdigest())


def cut(
    ids: Sequence[TokenId], *, bos_id: TokenId | None, context_tokens: int, num_tokens: int
) -> list[Window]:
    """Windows that score each of the first `num_tokens` of `ids` once, in order.

    `ids` are the text's own; `bos_id` (None: the model has none) goes before each window. No
    window is longer than `WINDOW_TOKENS` or `context_tokens`.

    Raises:
        RequestError: fewer than two tokens, so that there is nothing to predict, or a context
            too short for it.
    """
    ids = ids[:num_tokens]
    head = () if bos_id is None else (bos_id,)
    longest = min(WINDOW_TOKENS, context_tokens) - len(head)
    if len(head) + len(ids) < 2 or longest < 2 - len(head):
        raise RequestError(
            f"There is nothing to predict in {len(ids)} tokens with a context of "
            f"{context_tokens}; give a longer text, a paragraph at least."
        )
    num_new = min(NEW_TOKENS, max(1, longest // 2))
    windows: list[Window] = []
    scored = 1 - len(head)  # without BOS nothing predicts the first token
    while scored < len(ids):
        end = min(scored + (num_new if windows else longest - scored), len(ids))
        start = max(0, end - longest)
        windows.append(Window((*head, *ids[start:end]), len(head) + scored - start))
        scored = end
    return windows
