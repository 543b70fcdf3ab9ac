"""From a checked body to a turn that can be answered: sampling, tokens, constraint, choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.model import Model
from twostroke.model.asking import Asked, check_asked, compile_calls, parser_for
from twostroke.model.choices import siblings
from twostroke.model.predictions import Prediction, PredictionTally
from twostroke.model.preparing import compile_timed
from twostroke.server.choices import check_total, of_prompt
from twostroke.server.keys import ADMISSION, ARRIVED_AT, CALLER, REQUEST_ID, TURN
from twostroke.server.model_for import model_for
from twostroke.server.text_threads import threads_for
from twostroke.server.turn import Choice, Prompt, Turn
from twostroke.text.prompt import encode_continuation
from twostroke.text.template import ChatEnd
from twostroke.text.tools import ToolUse
from twostroke.timings import Preparation
from twostroke.types import Constraint, Request, TokenId

# They wait for those that compile, which have limits of their own.
_grammar_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="twostroke-grammar-wait")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a body asks for, whichever the surface.

    `given` are names of `SamplingParams`; `n` is the number of answers to each prompt. With
    `reads_sections` answers are parsed: for reasoning, and for calls where there are `tools`.
    `schedule` adds to a request when it is served (`QueueFields.scheduled`); `variables` are for
    the chat template, and `end` is where the text of a conversation ends. With `reports_progress`
    the surface's frames are `ProgressFrames`. `prediction` is what the answer is expected to say.
    """

    model: str | None
    prompts: Sequence[Prompt]
    given: Mapping[str, Any]
    schedule: Callable[[Request, float], Request]
    n: int = 1
    constraint: Constraint | None = None
    tools: ToolUse | None = None
    reads_sections: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    end: ChatEnd = ChatEnd.BEGUN
    reports_progress: bool = False
    prediction: str = ""


async def begin(request: web.Request, wanted: Wanted) -> Turn:
    """Checks parameters, tokenises the prompts and compiles the constraint, the latter in threads.

    The log and the traces of `request` tell of the turn from then on.

    Raises:
        RequestError: the model, a parameter, a prompt or the constraint is wrong, or more answers
            are asked for than one request may.
        ModelNotAllowedError, RateLimitError: the caller's key has other models, or had its share.
        UnavailableError: the model is not loaded, or too many constraints are being compiled.
    """
    caller = request[CALLER]
    admission = request[ADMISSION] = caller.enter()
    model = await model_for(request, wanted.model)
    check_total(len(wanted.prompts), wanted.n)
    asked = check_asked(Asked(model.sampling(**wanted.given), wanted.constraint, wanted.tools))
    all_ids, prepared = await _encode(model, wanted)
    constraint, prepared = await _compile(model, all_ids[0], asked, prepared)
    prediction = await _predicted(model, wanted.prediction)
    admission.take_tokens(sum(map(len, all_ids)))
    requests = [
        Request(request[REQUEST_ID], ids, asked.sampling, constraint, scope=caller.scope)
        for ids in all_ids
    ]
    arrived_at = request[ARRIVED_AT]
    requests = [
        replace(
            wanted.schedule(each, arrived_at),
            reports_progress=wanted.reports_progress,
            prediction=prediction.ids if prediction else (),
        )
        for each in requests
    ]
    choices = [Choice(each) for each in siblings(requests, wanted.n)]
    if wanted.reads_sections and asked.reads_sections:
        for choice in choices:
            choice.parser = parser_for(model, choice.request.prompt_ids, wanted.tools)
    if prediction is not None:
        for choice in choices:
            choice.tally = PredictionTally(prediction)
    turn = Turn(model, request[REQUEST_ID], arrived_at, prepared, choices, wanted.n)
    request[TURN] = turn
    return turn


async def _encode(model: Model, wanted: Wanted) -> tuple[list[tuple[TokenId, ...]], Preparation]:
    """The ids of each prompt, and what all of them took: no choice begins before the last is there.

    Prompts go one by one, so that those of other requests come in between.
    """
    loop = asyncio.get_running_loop()
    all_ids, total = [], Preparation()
    for number, prompt in enumerate(wanted.prompts):
        encode = loop.run_in_executor(
            threads_for(prompt),
            model.encode_timed,
            prompt,
            wanted.tools,
            wanted.variables,
            wanted.end,
        )
        try:
            ids, prepared = await encode
        except RequestError as error:
            if len(wanted.prompts) == 1:
                raise
            raise of_prompt(number, error) from None
        all_ids.append(ids)
        total = _sum(total, prepared)
    return all_ids, total


async def _predicted(model: Model, text: str) -> Prediction | None:
    """What an answer is expected to say; None where nothing is."""
    if not text:
        return None

    def predicted() -> Prediction:
        return Prediction(encode_continuation(model.tokenizer, text))

    return await asyncio.get_running_loop().run_in_executor(threads_for(text), predicted)


def _sum(total: Preparation, more: Preparation) -> Preparation:
    def added(name: str) -> float | None:
        known = [ms for each in (total, more) if (ms := getattr(each, name)) is not None]
        return sum(known) if known else None

    return replace(total, template_ms=added("template_ms"), tokenise_ms=added("tokenise_ms"))


async def _compile(
    model: Model, prompt_ids: tuple[TokenId, ...], asked: Asked, prepared: Preparation
) -> tuple[Constraint | None, Preparation]:
    """What the answers must look like, compiled."""
    loop = asyncio.get_running_loop()
    constraint = asked.constraint
    if asked.tools is not None:
        return await loop.run_in_executor(
            _grammar_threads, compile_calls, model, prompt_ids, asked, prepared
        )
    if constraint is not None:
        prepared = await loop.run_in_executor(
            _grammar_threads, compile_timed, model.engine.compile, constraint, prepared
        )
    return constraint, prepared
