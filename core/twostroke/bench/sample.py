"""What is asked of an endpoint, and what its client saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a text or the messages of a chat, and how many tokens to answer."""

    prompt: str | Sequence[Message]
    num_answer_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its client saw it; moments in seconds of the client's clock.

    `token_times` are when the pieces of the answer arrived, one a token as far as the server sends
    each as it is made. The numbers of tokens are the server's own; where it tells none, those of
    the answer are the pieces that came.
    """

    started_at: float
    ended_at: float
    token_times: tuple[float, ...] = ()
    num_prompt_tokens: int | None = None
    num_tokens: int = 0
    text: str = ""
    error: str | None = None  # what went wrong, in a few words

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request to the first piece of the answer."""
        return self.token_times[0] - self.started_at if self.token_times else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between the pieces of the answer."""
        return [after - before for before, after in pairwise(self.token_times)]
