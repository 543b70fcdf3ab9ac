"""The body of `POST /v1/responses`: its fields, and what of it is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from twostroke.errors import RequestError
from twostroke.server.fields import Int, QueueFields, SamplingFields
from twostroke.server.surfaces.openai.shapes import template_variables
from twostroke.server.surfaces.openai.structure import StructureFields

LOGPROBS = "message.output_text.logprobs"


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
