"""What is wrong with a response's body that types can't say, and what it asks of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.server.surfaces.openai.responses.fields import LOGPROBS, ResponsesBody
from twostroke.server.surfaces.openai.structure import asked_constraint
from twostroke.server.surfaces.openai.unsupported import refuse_unsupported
from twostroke.types import Constraint, ConstraintKind

_INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",
    # Of tools and inputs that this server has not: nothing is there to be included.
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
)
_MAX_PAIRS, _MAX_NAME_CHARS, _MAX_VALUE_CHARS = 16, 64, 512  # of `metadata`, as OpenAI has them
_ELSEWHERE = {  # chat completions' names of what goes by another one here
    "messages": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "functions": "tools",
    "function_call": "tool_choice",
    "logprobs": f'include: ["{LOGPROBS}"]',
}
_NOT_BUILT = ("conversation", "prompt", "context_management", "moderation", "background_options")
_TAKEN = ("tools", "tool_choice", "top_logprobs", "chat_template_kwargs", *_ELSEWHERE)


def check_body(body: ResponsesBody, raw: Mapping[str, Any]) -> None:
    """Checks what types can't say.

    Raises:
        RequestError: a field is of chat completions, asks for what is not built, or is too large.
    """
    for name, ours in _ELSEWHERE.items():
        if raw.get(name) is not None:
            raise _unsupported(name, f"{name} is no field of a response; it is {ours} here.")
    for name in _NOT_BUILT:
        if raw.get(name) is not None:
            raise _unsupported(name, f"{name} is not supported by this server. Leave it out.")
    if body.background:
        raise _unsupported(
            "background", "background is not supported by this server; leave it out, or stream."
        )
    if body.truncation == "auto":
        raise _unsupported(
            "truncation",
            "truncation is only taken as disabled: nothing of an input is dropped silently. "
            "Shorten the input where it does not fit.",
        )
    refuse_unsupported(raw, taken=_TAKEN)
    for i, name in enumerate(body.include or ()):
        if name not in _INCLUDABLE:
            raise RequestError(
                f"include[{i}] must be one of {', '.join(_INCLUDABLE)}.", param=f"include[{i}]"
            )
    _check_metadata(body.metadata or {})


def response_constraint(body: ResponsesBody, raw: Mapping[str, Any]) -> Constraint | None:
    """What the text must look like: `text.format`, or vLLM's fields.

    Raises:
        RequestError: several, or one that is not understood.
    """
    asked = body.text.format if body.text else None
    other = asked_constraint(raw)
    kind = "text" if asked is None else asked.get("type")
    if asked is None or kind == "text":
        return other
    if other is not None:
        raise RequestError(
            "text.format and another constraint are both there; an answer follows one of them.",
            param="text.format",
        )
    if kind == "json_object":
        return Constraint(ConstraintKind.JSON_OBJECT)
    if kind != "json_schema":
        raise RequestError(
            "text.format.type must be one of text, json_object, json_schema.",
            param="text.format.type",
        )
    name = "text.format.schema"
    if not isinstance(asked.get("schema"), Mapping):
        raise RequestError(f"{name} must be a JSON schema, which is an object.", param=name)
    return constraint_from(
        {ConstraintKind.JSON_SCHEMA: asked["schema"]}, {ConstraintKind.JSON_SCHEMA: name}
    )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _MAX_PAIRS:
        raise RequestError(
            f"metadata holds {len(metadata)} pairs; {_MAX_PAIRS} may be.", param="metadata"
        )
    for name, value in metadata.items():
        if len(name) > _MAX_NAME_CHARS or len(value) > _MAX_VALUE_CHARS:
            raise RequestError(
                f"metadata.{name[:_MAX_NAME_CHARS]} is too long: names may have {_MAX_NAME_CHARS} "
                f"characters, values {_MAX_VALUE_CHARS}.",
                param="metadata",
            )


def _unsupported(name: str, message: str) -> RequestError:
    return RequestError(message, param=name, code="unsupported_parameter")
