"""Several answers to one request (`n`): submitted together, answered side by side."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from twostroke.errors import RequestError, UnavailableError
from twostroke.model import ReadAnswer, TextEvent
from twostroke.server.turn import Answer, Gathering, Turn
from twostroke.text.parsers import SectionParser
from twostroke.types import FailedEvent, FinishedEvent, FinishReason

MAX_CHOICES = 128


def num_choices(body: dict[str, Any]) -> int:
    """`n` of a body, 1 where it is not given; `best_of` may say the same number.

    Raises:
        RequestError: it is out of range, or `best_of` is another one.
    """
    n = body.get("n")
    n = 1 if n is None else n
    if type(n) is not int or not 1 <= n <= MAX_CHOICES:
        raise RequestError(f"n must be a whole number from 1 to {MAX_CHOICES}.", param="n")
    best_of = body.get("best_of")
    if best_of is not None and (type(best_of) is not int or best_of != n):
        raise RequestError(
            "best_of may only equal n: answers are not ranked.",
            param="best_of",
            code="unsupported_parameter",
        )
    return n


def choices_of(
    turn: Turn, n: int, new_parser: Callable[[], SectionParser | None] = lambda: None
) -> list[Turn]:
    """`turn` and its siblings; with a seed, choice i has the seed plus i.

    `new_parser` makes the parser of a sibling.
    """
    if n == 1:
        return [turn]
    request = replace(turn.request, group=turn.request.request_id)
    turn.request = request
    turns = [turn]
    for i in range(1, n):
        seed = request.sampling.seed
        sampling = request.sampling
        if seed is not None:
            sampling = replace(sampling, seed=(seed + i) % 2**64)
        sibling = replace(request, request_id=f"{request.request_id}-{i}", sampling=sampling)
        turns.append(replace(turn, request=sibling, parser=new_parser()))
    return turns


async def answers(
    turns: Sequence[Turn],
) -> AsyncGenerator[tuple[int, TextEvent | FinishedEvent], None]:
    """The events of some turns, each with its turn's index; closing it aborts all of them.

    Raises:
        TwostrokeError: one was refused (and so all were), failed, or was stopped with the server.
    """
    first = turns[0]
    events = first.model.events(
        [turn.request for turn in turns],
        arrived_at=first.arrived_at,
        prepared=first.prepared,
        shown_ids=first.shown_ids,
    )
    async with aclosing(events):
        async for index, event in events:
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, TextEvent):
                yield index, event
            elif event.reason is FinishReason.ABORTED:
                raise UnavailableError("The answer was cut off: the server is stopping.")
            else:
                yield index, turns[index].finish(event)


async def gather_all(turns: Sequence[Turn]) -> list[Answer]:
    """The whole answers of some turns.

    Raises:
        TwostrokeError: as `answers`.
    """
    gathered = [Gathering(turn, ReadAnswer(turn.new_call_id)) for turn in turns]
    async with aclosing(answers(turns)) as events:
        async for index, event in events:
            if isinstance(event, TextEvent):
                gathered[index].add(event)
    return [each.whole() for each in gathered]
