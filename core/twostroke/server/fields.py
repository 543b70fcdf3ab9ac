"""The fields that surfaces share, as strict pydantic models, and their errors as sentences.

Strict means that `"5"` and `true` are not 5. What the values may be is checked by
`Model.sampling`, where the model is known; here it is only types, so that neither is said twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from twostroke.errors import RequestError
from twostroke.types import Request

Int = Annotated[int, Field(gt=-(2**64), lt=2**64)]
Messages = Annotated[list[dict[str, Any]], Field(min_length=1)]
"""Chat messages; what is inside of each is checked by the text room, which renders them."""


def _check_stops(value: Any) -> Any:
    strings = value if isinstance(value, list) else [value]
    if value is not None and not all(isinstance(each, str) for each in strings):
        raise ValueError("must be a string or a list of strings")
    return value


Stops = Annotated[
    Any,
    BeforeValidator(_check_stops),
    WithJsonSchema({"type": ["string", "array", "null"], "items": {"type": "string"}}),
]
"""A string or a list of them. Its length is checked by `Model.sampling`."""

Count = Annotated[Any, WithJsonSchema({"type": ["integer", "null"]})]
"""How many answers; `choices.num_choices` checks it."""

S = TypeVar("S", bound=BaseModel)

_NEAR = 0.7  # max_new_tokens still means max_tokens
_MAX_NAMED = 8


class SamplingFields(BaseModel):
    """How tokens are chosen, by the names every surface takes. None means: the model's default.

    `max_completion_tokens` is the newer name of `max_tokens`.
    """

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    max_tokens: Int | None = None
    """most tokens of an answer; default: to the end of the context"""
    max_completion_tokens: Int | None = None
    """its newer name"""
    min_tokens: Int | None = None
    """before so many tokens nothing ends the answer: no end of sequence, stop id or stop string"""
    temperature: float | None = None
    """0 is greedy, 1 the model's own distribution"""
    top_k: Int | None = None
    """only so many of the likeliest tokens; 0 or -1: all"""
    top_p: float | None = None
    """only the likeliest tokens that together have this probability"""
    min_p: float | None = None
    """only tokens with at least this share of the likeliest one's probability"""
    repetition_penalty: float | None = None
    """above 1: less of what stands in prompt or answer"""
    presence_penalty: float | None = None
    """-2 to 2: less of what stands in the answer, once"""
    frequency_penalty: float | None = None
    """-2 to 2: the same for each time it stands there"""
    logit_bias: dict[str, float] | None = None
    """token id to what is added to its logit"""
    seed: Int | None = None
    """64 bits; the same seed gives the same answer. Choice i has the seed plus i"""
    stop: Stops = None
    """text that ends the answer and is no part of it"""
    ignore_eos: bool | None = None
    """go on behind the end-of-sequence token"""

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: `max_tokens` and `max_completion_tokens` contradict each other.
        """
        given = {
            name: value
            for name in SamplingFields.model_fields
            if (value := getattr(self, name)) is not None
        }
        newer = given.pop("max_completion_tokens", None)
        if newer is not None:
            if given.get("max_tokens", newer) != newer:
                raise RequestError(
                    f"max_tokens is {self.max_tokens} but max_completion_tokens is {newer}; "
                    "they mean the same, so give one of them.",
                    param="max_completion_tokens",
                )
            given["max_tokens"] = newer
        return given


class QueueFields(BaseModel):
    """When a request is served, by the names every surface takes.

    `priority` as vLLM has it: lower ones sooner, 0 for those that name none; any client may give
    one. `timeout_s` can only shorten what `scheduler.request_timeout_s` allows.
    """

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    priority: Int | None = None
    """lower sooner; default 0"""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """seconds until the request ends with an error; only shortens `scheduler.request_timeout_s`"""

    def scheduled(self, request: Request, arrived_at: float) -> Request:
        """`request` with its priority and its deadline; `arrived_at` is on the engine's clock."""
        deadline_at = None if self.timeout_s is None else arrived_at + self.timeout_s
        return replace(request, priority=self.priority or 0, deadline_at=deadline_at)


def check_shape(shape: type[S], body: Mapping[str, Any]) -> S:
    """The body as `shape`.

    Raises:
        RequestError: names every field that is not known, or the first one at fault and what
            was expected; and how many more are wrong.
    """
    try:
        return shape.model_validate(body)
    except ValidationError as error:
        details = error.errors(include_url=False)
    unknown = [field_path(d["loc"]) for d in details if d["type"] == "extra_forbidden"]
    first = details[0]
    path = unknown[0] if unknown else field_path(first["loc"])
    others = len(details) - (len(unknown) or 1)
    more = f" ({others} more field{'s are' if others > 1 else ' is'} wrong.)" if others else ""
    if unknown:
        sentence = _unknown_fields(unknown, sorted(shape.model_fields))
    else:
        sentence = _sentence(path, first)
    kind = "extra_forbidden" if unknown else first["type"]
    raise _refusal(kind, sentence + more, path) from None


def _refusal(kind: str, message: str, path: str) -> RequestError:
    """With the code that OpenAI has for this kind of mistake; `kind` is pydantic's."""
    if kind == "missing":
        return RequestError(message, param=path, code="missing_required_parameter")
    if kind == "extra_forbidden":
        return RequestError(message, param=path, code="unknown_parameter")
    if kind.endswith(("_type", "_parsing")):
        return RequestError(message, param=path, code="invalid_type")
    return RequestError(message, param=path, code="invalid_value")


def field_path(loc: tuple[int | str, ...]) -> str:
    """E.g. `messages[0].content`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path[:200]


def _sentence(path: str, detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "missing":
        return f"{path} is missing."
    if kind == "value_error":
        return f"{path} {detail['ctx']['error']}."
    if kind == "too_short":
        return f"{path} is empty."
    expected = detail["msg"].removeprefix("Input should be ")
    return f"{path} must be {expected}, not {_shown(detail['input'])}."


def _unknown_fields(names: list[str], known: list[str]) -> str:
    """Names them all, each with the field that was probably meant."""
    shown = []
    for name in names[:_MAX_NAMED]:
        near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
        shown.append(f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name))
    if len(names) > _MAX_NAMED:
        shown.append(f"{len(names) - _MAX_NAMED} more")
    *before, last = shown
    listed = f"{', '.join(before)} and {last}" if before else last
    what = "are not fields" if before else "is not a field"
    hint = "" if all("(did" in each for each in shown) else f" Known are {', '.join(known)}."
    return f"{listed} {what} of this request.{hint}"


def _shown(value: Any) -> str:
    """A short picture of a wrong value: never a whole prompt."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the string {value!r}" if len(value) <= 40 else "a long string"
    shown = {None: "null", True: "true", False: "false"}.get(value) if _is_plain(value) else None
    text = shown or repr(value)
    return text if len(text) <= 40 else f"{text[:12]}… ({len(text)} digits)"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool)
