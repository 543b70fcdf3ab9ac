"""The body of `POST /v1/responses`: its fields, and what of it is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.server.fields import Int, QueueFields, SamplingFields
from twostroke.server.surfaces.openai.shapes import template_variables
from twostroke.server.surfaces.openai.structure import StructureFields, asked_constraint
from twostroke.server.surfaces.openai.unsupported import refuse_unsupported
from twostroke.types import Constraint, ConstraintKind

LOGPROBS = "message.output_text.logprobs"
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


class ReasoningFields(BaseModel):
    """`reasoning`; there are no summaries, so what is said of them changes nothing."""

    model_config = ConfigDict(strict=True, frozen=True)

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextFields(BaseModel):
    """`text`."""

    model_config = ConfigDict(strict=True, frozen=True)

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseStreamOptions(BaseModel):
    """`stream_options`; what it holds besides is ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    include_obfuscation: bool | None = None


class ResponsesBody(SamplingFields, QueueFields, StructureFields):
    """The body of a response. SDKs send other fields too: those are ignored."""

    model: str | None = None
    """which one, by name or alias; left out: `server.default_model`, or the first"""
    input: Any = None  # `items.check_items` checks it
    """messages, `function_call`, `function_call_output`, `reasoning`; an `item_reference` names
    an item of a stored response"""
    instructions: str | None = None
    """a system message before everything else; of this request only"""
    previous_response_id: str | None = None
    """a stored response that this one goes on from"""
    store: bool | None = None
    """false: it is not kept; default true"""
    stream: bool | None = None
    """whether tokens are sent as they are made"""
    stream_options: ResponseStreamOptions | None = None
    """`include_obfuscation`: deltas are filled up with random letters; default false"""
    max_output_tokens: Annotated[Int, Field(ge=1)] | None = None
    """another name of `max_tokens`"""
    include: list[str] | None = None
    """`message.output_text.logprobs`; others of OpenAI's are taken and have nothing to include"""
    top_logprobs: Int | None = None
    """alternatives of each, 0 to 20"""
    text: TextFields | None = None
    """`format`: `text`, `json_object` or `json_schema` with its `schema`; `verbosity`, for
    templates that ask for it"""
    reasoning: ReasoningFields | None = None
    """`effort`, for templates that ask for it; there are no summaries"""
    tools: Any = None  # `tools.asked_tools` checks it, and `tool_choice`
    """`{"type": "function", "name": …, "parameters": …}`; enforced only with `"strict": true`"""
    tool_choice: Any = None
    """`none`, `auto`, `required`, `{"type": "function", "name": …}`, `allowed_tools`"""
    parallel_tool_calls: bool | None = None
    """false: one call at most"""
    max_tool_calls: Int | None = None  # of built-in tools, of which there are none
    """of built-in tools, of which there are none"""
    truncation: Literal["disabled", "auto"] | None = None
    """`disabled`"""
    background: bool | None = None
    """false"""
    metadata: dict[str, str] | None = None
    """up to 16 strings, repeated in the response"""
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    stop_token_ids: list[Int] | None = None
    """tokens that end the answer"""
    chat_template_kwargs: Any = None  # `check_variables` checks it
    """values that the chat template asks for"""

    @property
    def wants_logprobs(self) -> bool:
        """Whether texts come with log-probabilities of their tokens."""
        return LOGPROBS in (self.include or ())

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: two fields contradict each other.
        """
        given = super().sampling()
        if self.max_output_tokens is not None:
            if given.get("max_tokens", self.max_output_tokens) != self.max_output_tokens:
                raise RequestError(
                    "max_output_tokens and max_tokens mean the same and differ; give one of them.",
                    param="max_output_tokens",
                )
            given["max_tokens"] = self.max_output_tokens
        if self.stop_token_ids is not None:
            given["stop_ids"] = frozenset(self.stop_token_ids)
        if self.wants_logprobs:
            given["logprobs"] = self.top_logprobs or 0
        return given

    def variables(self) -> dict[str, Any]:
        """Values for the chat template, for templates that ask for them.

        Raises:
            RequestError: they are wrong.
        """
        effort = self.reasoning.effort if self.reasoning else None
        verbosity = self.text.verbosity if self.text else None
        return template_variables(effort, verbosity, self.chat_template_kwargs)


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
