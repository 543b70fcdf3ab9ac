"""Several answers to one prompt, for people who write Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from twostroke.errors import RequestError
from twostroke.model.answer import Completion, Gathered, Token, whole
from twostroke.model.asking import Asked, Ready, parser_for
from twostroke.model.events import SyncTextEvents
from twostroke.types import Request

if TYPE_CHECKING:
    from twostroke.model.model import Model

MAX_CHOICES = 128


class Choices:
    """Several answers that are being made: iterate over (index, token), or take them whole.

    Leaving the loop early and closing (or dropping) it ends all of them.
    """

    def __init__(self, events: SyncTextEvents, readies: Sequence[Ready]) -> None:
        """`events` are those of the requests in `readies`."""
        self._events = events
        self._gathered = [Gathered(ready) for ready in readies]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, Token]:
        while True:
            index, event = next(self._events)
            token = self._gathered[index].gather(event)
            if token is not None:
                return index, token

    def complete(self) -> list[Completion]:
        """Takes what is left and returns the whole, in the order of the choices.

        Raises:
            TwostrokeError: a sequence failed.
        """
        for _ in self:
            pass
        return [whole(each) for each in self._gathered]

    def close(self) -> None:
        """Ends the sequences that have not ended."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def submit_choices(model: Model, ready: Ready, asked: Asked, n: int) -> Choices:
    """Asks for `n` answers to the prompt of `ready`, which is read once.

    Raises:
        RequestError: `n` is out of range, or more than the engine can ever hold.
        UnavailableError: too many requests wait already.
    """
    check_n(n)
    readies = [ready]
    for request in siblings([ready.request], n)[1:]:
        parser = ready.parser and parser_for(model, request.prompt_ids, asked.tools)
        readies.append(replace(ready, request=request, parser=parser))
    events = SyncTextEvents(
        model.engine,
        model.tokenizer,
        [each.request for each in readies],
        arrived_at=ready.arrived_at,
        prepared=ready.prepared,
        shown_ids=ready.shown_ids,
    )
    return Choices(events, readies)


def check_n(n: Any) -> int:
    """A number of answers.

    Raises:
        RequestError: it is out of range.
    """
    if type(n) is not int or not 1 <= n <= MAX_CHOICES:
        raise RequestError(f"n must be a whole number from 1 to {MAX_CHOICES}.", param="n")
    return n


def siblings(requests: Sequence[Request], n: int) -> list[Request]:
    """`n` choices of each request. With a seed, choice i of a prompt has the seed plus i.

    Each but the first has an id of its own; those of one prompt are a group, of which the first
    scores the prompt where that is asked for.
    """
    made = []
    for number, request in enumerate(requests):
        for i in range(n):
            sampling, index = request.sampling, number * n + i
            if sampling.seed is not None:
                sampling = replace(sampling, seed=(sampling.seed + i) % 2**64)
            if i and sampling.prompt_logprobs is not None:
                sampling = replace(sampling, prompt_logprobs=None)
            request_id = f"{request.request_id}-{index}" if index else request.request_id
            group = f"{request.request_id}-{number}" if n > 1 else None
            made.append(replace(request, request_id=request_id, sampling=sampling, group=group))
    return made
