"""`POST /v1/completions`, as OpenAI's clients speak it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, WithJsonSchema

from twostroke.errors import RequestError
from twostroke.server.answers import Answer, gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.choices import num_choices
from twostroke.server.fields import Count, Int, check_shape
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.openai.completion_frames import (
    CompletionFrames,
    choice_shape,
    first_of,
)
from twostroke.server.surfaces.openai.logprobs import legacy_logprobs, offsets_of
from twostroke.server.surfaces.openai.shapes import OpenAIFields, answer_body
from twostroke.server.surfaces.openai.structure import asked_constraint
from twostroke.server.surfaces.openai.unsupported import refuse_unsupported
from twostroke.server.turn import Prompt, Turn
from twostroke.types import TokenId

_INT_OR_FALSE = WithJsonSchema({"anyOf": [{"type": "integer"}, {"enum": [False, None]}]})


def _unless_false(value: Any) -> Any:
    return None if value is False else value


_ITEMS = {"type": ["string", "integer", "array"]}
Prompts = Annotated[Any, WithJsonSchema({"type": ["string", "array"], "items": _ITEMS})]


class CompletionBody(OpenAIFields):
    """The body of a legacy completion."""

    prompt: Prompts  # `prompts_of` checks it
    """the choices of the first prompt come first; at most 128 answers in all"""
    best_of: Count = None
    """may only equal `n`: answers are not ranked"""
    echo: bool | None = None
    """the text begins with the prompt"""
    logprobs: Annotated[Int | None, BeforeValidator(_unless_false), _INT_OR_FALSE] = (
        None  # 0: no alternatives
    )
    """log-probabilities with so many alternatives, 0 to 20; with `echo` of the prompt's tokens
    too"""

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: two fields contradict each other.
        """
        given = super().sampling()
        if self.logprobs is not None:
            given["logprobs"] = self.logprobs
            if self.echo:
                given["prompt_logprobs"] = self.logprobs
        return given


async def completions(request: web.Request) -> web.StreamResponse:
    """Answers `POST /v1/completions`, streamed or whole.

    With `echo` the text begins with the prompt; of a prompt that came as ids, with their text,
    which leaves control tokens out. With `logprobs` too, its tokens are scored.
    """
    raw = await read_json(request)
    body = check_shape(CompletionBody, raw)
    refuse_unsupported(raw, taken=("n", "best_of", "echo", "logprobs"))
    prompts = prompts_of(raw.get("prompt"))
    wanted = Wanted(
        body.model,
        prompts,
        body.sampling(),
        body.scheduled,
        n=num_choices(body.n, body.best_of),
        constraint=asked_constraint(raw),
    )
    turn = await begin(request, wanted)
    echoed = _echoed(turn, prompts) if body.echo else [""] * len(turn.choices)
    if body.stream:
        frames = CompletionFrames(turn, body, echoed)
        return await stream(request, turn, frames)
    choices = []
    for number, whole in enumerate(await gather(turn)):
        logprobs = None
        if body.logprobs is not None:
            logprobs = await asyncio.to_thread(_whole_logprobs, turn, number, whole, echoed[number])
        text = echoed[number] + whole.text
        choices.append(choice_shape(text, whole.finished.reason, logprobs))
    return json_reply(answer_body(turn, body, "text_completion", "cmpl", choices))


def _echoed(turn: Turn, prompts: Sequence[Prompt]) -> list[str]:
    """The text of each choice's prompt."""
    texts = []
    for number, choice in enumerate(turn.choices):
        prompt = prompts[number // turn.num_per_prompt]
        is_text = isinstance(prompt, str)
        ids = choice.request.prompt_ids
        texts.append(str(prompt) if is_text else turn.model.tokenizer.decode(ids))
    return texts


def _whole_logprobs(turn: Turn, index: int, whole: Answer, echoed: str) -> dict[str, Any]:
    """One entry for each token of an echoed prompt and of the answer, its end included."""
    tokenizer, finished = turn.model.tokenizer, whole.finished
    ids: list[TokenId] = []
    offsets: list[int] = []
    scored = turn.choices[first_of(turn, index)].finished  # the prompt is scored once
    of_prompt = scored.prompt_logprobs if scored is not None else ()
    if of_prompt:
        ids += turn.choices[index].request.prompt_ids
        offsets += offsets_of(tokenizer, ids)
    answered = whole.logprobs
    offsets += [len(echoed) + offset for offset in whole.offsets]
    if finished.end_logprob is not None:
        answered = (*answered, finished.end_logprob)
        offsets.append(len(echoed) + len(whole.text))
    ids += [each.token_id for each in answered]
    return legacy_logprobs(tokenizer, ids, (*of_prompt, *answered), offsets)


def prompts_of(value: Any) -> list[Prompt]:
    """The prompts of a body: a string, token ids, or a list of strings or of token ids.

    Raises:
        RequestError: there is none, or it is something else.
    """
    if value is None:
        raise RequestError("prompt is missing.", param="prompt")
    if isinstance(value, str) or _is_ids(value):
        return [value]
    for number, each in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(each, str) and not _is_ids(each):
            raise RequestError(
                f"prompt[{number}] must be a string or a list of token ids.",
                param=f"prompt[{number}]",
            )
    if not isinstance(value, list):
        raise RequestError(
            "prompt must be a string, a list of token ids, or a list of either.", param="prompt"
        )
    return value


def _is_ids(value: Any) -> bool:
    """Whether it is a list of whole numbers; each type is looked at once, for long prompts."""
    return isinstance(value, list) and set(map(type, value)) <= {int}
