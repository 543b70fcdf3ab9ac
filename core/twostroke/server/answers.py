"""The answers of a turn: as events while they are made, or whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from twostroke.errors import ContextLengthError, EngineError, UnavailableError
from twostroke.model import ReadAnswer, TextEvent, TextEvents
from twostroke.server.choices import of_prompt
from twostroke.server.turn import Choice, Turn
from twostroke.types import (
    FailedEvent,
    FinishedEvent,
    FinishReason,
    ProgressEvent,
    TokenId,
    TokenLogprob,
)

AnswerEvent = TextEvent | FinishedEvent
TurnEvent = ProgressEvent | AnswerEvent


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `text` is all of it, `parts` what its choice's parser makes of it."""

    text: str
    parts: ReadAnswer
    finished: FinishedEvent
    logprobs: tuple[TokenLogprob, ...] = ()  # where the request asks for them, one a token
    token_ids: tuple[TokenId, ...] = ()  # without the end-of-sequence token
    offsets: tuple[int, ...] = ()  # where in the text each of those tokens begins, in characters


async def answers(turn: Turn) -> AsyncGenerator[tuple[int, TurnEvent], None]:
    """The events of a turn, each with its choice's index; the last of a choice is its end.

    ProgressEvents come first, where the requests ask for them. Closing it aborts all choices.
    Sets `finished` and `num_tokens` of each.

    Raises:
        TwostrokeError: one was refused (and so all were), failed, or was stopped with the server.
    """
    events = _submitted(turn)
    async with aclosing(events):
        async for index, event in events:
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, FinishedEvent):
                if event.reason is FinishReason.ABORTED:
                    raise UnavailableError("The answer was cut off: the server is stopping.")
                turn.choices[index].finished = event
            elif isinstance(event, TextEvent):
                turn.choices[index].note(event)
            yield index, event


def _submitted(turn: Turn) -> TextEvents:
    requests = [choice.request for choice in turn.choices]
    try:
        return turn.model.events(
            requests,
            arrived_at=turn.arrived_at,
            prepared=turn.prepared,
            shown_ids=turn.shown_ids,
        )
    except ContextLengthError as error:
        if len(requests) == turn.num_per_prompt:
            raise
        limit = turn.model.context_tokens
        too_long = (i for i, each in enumerate(requests) if len(each.prompt_ids) >= limit)
        raise of_prompt(next(too_long, 0) // turn.num_per_prompt, error) from None


async def gather(turn: Turn) -> list[Answer]:
    """The whole answers of a turn.

    Raises:
        TwostrokeError: as `answers`.
    """
    gathered = [_Gathering(each, ReadAnswer(turn.new_call_id)) for each in turn.choices]
    async with aclosing(answers(turn)) as events:
        async for index, event in events:
            if isinstance(event, TextEvent):
                gathered[index].add(event)
    return [each.whole() for each in gathered]


@dataclass(slots=True)
class _Gathering:
    """An answer that is being put together."""

    choice: Choice
    parts: ReadAnswer
    pieces: list[str] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)
    num_characters: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, event: TextEvent) -> None:
        """Takes the next token. Mutates self and the choice's parser."""
        if event.logprob is not None:
            self.logprobs.append(event.logprob)
            self.offsets.append(self.num_characters)
        if event.index == len(self.token_ids):  # the last one comes again with text held back
            self.token_ids.append(event.token_id)
        self.pieces.append(event.text)
        self.num_characters += len(event.text)
        self.parts.add(self.choice.read(event.text))

    def whole(self) -> Answer:
        """The answer; its choice has finished. Mutates self and the choice's parser.

        Raises:
            EngineError: the choice has not finished.
        """
        if self.choice.finished is None:
            raise EngineError("The answer ended before it was complete; try again.")
        self.parts.add(self.choice.read_rest())
        return Answer(
            "".join(self.pieces),
            self.parts,
            self.choice.finished,
            tuple(self.logprobs),
            tuple(self.token_ids),
            tuple(self.offsets),
        )
