"""The bodies of Anthropic's routes. Fields that are not known are ignored, as betas send many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.server.fields import Int, QueueFields, SamplingFields
from twostroke.server.surfaces.anthropic.conversation import conversation
from twostroke.server.surfaces.anthropic.schemas import Choice, Conversation, System, Tools
from twostroke.server.surfaces.anthropic.tools import asked_tools
from twostroke.text.tools import ToolUse
from twostroke.types import Constraint, ConstraintKind

MIN_BUDGET_TOKENS = 1024
_SWITCHES = {"enabled": True, "adaptive": True, "disabled": False, "between_tools": False}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


class PromptFields(BaseModel):
    """What a prompt is made of; what is inside of the values is checked by the methods."""

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    model: str | None = None
    """which one; may be left out where one is served"""
    messages: Conversation
    """the conversation; the answer goes on from a last message that is the assistant's"""
    system: System = None
    """the message of the system: a string, or blocks of text"""
    tools: Tools = None
    """functions that may be called, each with a name and an input_schema"""
    tool_choice: Choice = None
    """auto, any, tool with a name, or none"""
    thinking: dict[str, Any] | None = None
    """whether the chat template is to let the model think"""
    output_config: dict[str, Any] | None = None
    """effort, and the format of the answer: a JSON schema"""

    def conversation(self) -> list[dict[str, Any]]:
        """The messages, the system's first.

        Raises:
            RequestError: one is malformed, or holds what is no text.
        """
        return conversation(self.system, self.messages)

    def tool_use(self) -> ToolUse | None:
        """The functions that may be called.

        Raises:
            RequestError: they are wrong.
        """
        return asked_tools(self.tools, self.tool_choice)

    def variables(self) -> dict[str, Any]:
        """What the chat template is told of thinking, by the names that templates ask for.

        Raises:
            RequestError: `thinking` or the effort is wrong.
        """
        told: dict[str, Any] = {}
        if self.thinking is not None:
            kind = self.thinking.get("type")
            if not isinstance(kind, str) or kind not in _SWITCHES:
                raise RequestError(
                    f"thinking.type must be one of {', '.join(_SWITCHES)}.", param="thinking.type"
                )
            told |= {"enable_thinking": _SWITCHES[kind], "thinking": _SWITCHES[kind]}
            if kind == "enabled":
                told["thinking_budget"] = self._budget_tokens(self.thinking)
        effort = (self.output_config or {}).get("effort")
        if effort is not None:
            if not isinstance(effort, str) or effort not in _EFFORTS:
                raise RequestError(
                    f"output_config.effort must be one of {', '.join(_EFFORTS)}.",
                    param="output_config.effort",
                )
            told["reasoning_effort"] = _EFFORTS[effort]
        return told

    def _budget_tokens(self, thinking: Mapping[str, Any]) -> int:
        budget = thinking.get("budget_tokens")
        if type(budget) is not int or budget < MIN_BUDGET_TOKENS:
            raise RequestError(
                f"thinking.budget_tokens must be a whole number from {MIN_BUDGET_TOKENS} on.",
                param="thinking.budget_tokens",
            )
        return budget


class MessagesBody(PromptFields, SamplingFields, QueueFields):
    """The body of `/v1/messages`."""

    max_tokens: Int
    """most tokens of the answer"""
    stream: bool | None = None
    """whether events are sent as the answer is made"""
    stop_sequences: list[str] | None = None
    """text that ends the answer and is no part of it"""
    metadata: Any = None
    """ignored"""
    output_format: dict[str, Any] | None = None
    """the older name of output_config.format"""
    container: Any = None
    """refused: the server runs no tools"""
    mcp_servers: Any = None
    """refused: the server runs no tools"""

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: two fields contradict each other.
        """
        given = super().sampling()
        if self.stop_sequences:
            if "stop" in given:
                raise RequestError(
                    "stop and stop_sequences mean the same here; give one of them.", param="stop"
                )
            given["stop"] = self.stop_sequences
        return given

    @property
    def shows_thinking(self) -> bool:
        """Whether the text of thinking is wanted, and not only that there was some."""
        return (self.thinking or {}).get("display") != "omitted"

    def constraint(self) -> Constraint | None:
        """What the answer must look like.

        Raises:
            RequestError: the format is none that is known.
        """
        field, asked = "output_config.format", (self.output_config or {}).get("format")
        if asked is None:
            field, asked = "output_format", self.output_format
        if asked is None:
            return None
        schema = asked.get("schema") if isinstance(asked, Mapping) else None
        if not isinstance(schema, Mapping) or asked.get("type") != "json_schema":
            raise RequestError(
                f'{field} must be {{"type": "json_schema", "schema": {{…}}}}.', param=field
            )
        kind = ConstraintKind.JSON_SCHEMA
        return constraint_from({kind: schema}, {kind: f"{field}.schema"})

    def refuse_unsupported(self) -> None:
        """Refuses what would make the answer another one and is not built.

        Raises:
            RequestError: names the field.
        """
        for name in ("container", "mcp_servers"):
            if getattr(self, name):
                raise RequestError(
                    f"{name} is not supported by this server: it runs no tools. Leave it out.",
                    param=name,
                    code="unsupported_parameter",
                )

    def _budget_tokens(self, thinking: Mapping[str, Any]) -> int:
        budget = super()._budget_tokens(thinking)
        if budget >= self.max_tokens:
            raise RequestError(
                f"thinking.budget_tokens is {budget} and must be less than max_tokens, which is "
                f"{self.max_tokens}.",
                param="thinking.budget_tokens",
            )
        return budget
