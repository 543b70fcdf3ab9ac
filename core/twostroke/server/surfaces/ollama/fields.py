"""The bodies of Ollama's answering routes. Fields that are not known are ignored, as it does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.model import Model
from twostroke.server.fields import Int, QueueFields
from twostroke.server.surfaces.ollama.library import can_think
from twostroke.server.surfaces.ollama.options import Options
from twostroke.text.tools import ToolUse, tool_use
from twostroke.types import Constraint, ConstraintKind

_EFFORTS = ("low", "medium", "high", "max")
_DURATION = re.compile(r"-?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+|-?0")


class AnswerFields(QueueFields):
    """What `/api/chat` and `/api/generate` share."""

    model: str | None = None
    """which one; may be left out where one is served"""
    stream: bool | None = None
    """false: one object; otherwise an object a line"""
    format: Any = None
    """`json`, or a JSON schema that the answer follows"""
    options: Options | None = None
    """how tokens are chosen"""
    keep_alive: Any = None
    """0 with nothing to answer: the model leaves memory; else the YAML says how long it stays"""
    think: Any = None
    """whether, or how much, the chat template is to let the model think"""
    logprobs: bool | None = None
    """log-probabilities of the answer's tokens"""
    top_logprobs: Int | None = None
    """alternatives of each"""

    @property
    def unloads(self) -> bool:
        """Whether the model is to leave memory, where nothing is to be answered."""
        return self.keep_alive in (0, "0", "0s", "0m", "0h") and self.keep_alive is not False

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: an option is not built, or alternatives are asked for without logprobs.
        """
        given = {} if self.options is None else self.options.sampling()
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise RequestError(
                "top_logprobs needs logprobs; set logprobs to true.", param="top_logprobs"
            )
        return given

    def constraint(self) -> Constraint | None:
        """What the answer must look like.

        Raises:
            RequestError: the format is none that is known.
        """
        if self.format in (None, ""):
            return None
        if self.format == "json":
            return Constraint(ConstraintKind.JSON_OBJECT)
        if not isinstance(self.format, Mapping):
            raise RequestError('format must be "json" or a JSON schema.', param="format")
        kind = ConstraintKind.JSON_SCHEMA
        return constraint_from({kind: self.format}, {kind: "format"})

    def variables(self, model: Model) -> dict[str, Any]:
        """What the chat template is told of thinking, by the names that templates ask for.

        Raises:
            RequestError: `think` is wrong, or the model's answers know no thinking.
        """
        if self.think is None:
            return {}
        if not isinstance(self.think, bool) and self.think not in _EFFORTS:
            raise RequestError(
                f"think must be true, false or one of {', '.join(_EFFORTS)}.", param="think"
            )
        if self.think and not can_think(model):
            raise RequestError(
                f"{model.name!r} does not support thinking; leave think out.", param="think"
            )
        told: dict[str, Any] = {"enable_thinking": bool(self.think), "thinking": bool(self.think)}
        if isinstance(self.think, str):
            told["reasoning_effort"] = "high" if self.think == "max" else self.think
        return told

    def check_keep_alive(self) -> None:
        """How long a model stays behind an answer is the YAML's to say; this is only read.

        Raises:
            RequestError: it is neither a number of seconds nor a duration like 5m.
        """
        value = self.keep_alive
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_text = isinstance(value, str) and _DURATION.fullmatch(value) is not None
        if value is not None and not is_number and not is_text:
            raise RequestError(
                'keep_alive must be a number of seconds or a duration, e.g. "5m".',
                param="keep_alive",
            )


class OllamaChatBody(AnswerFields):
    """The body of `/api/chat`."""

    messages: list[dict[str, Any]] | None = None
    """the conversation; none: only the model is loaded"""
    tools: Any = None
    """functions that may be called"""

    def tool_use(self) -> ToolUse | None:
        """The functions that may be called.

        Raises:
            RequestError: they are wrong.
        """
        return tool_use(self.tools)


class OllamaGenerateBody(AnswerFields):
    """The body of `/api/generate`."""

    prompt: str | None = None
    """becomes a message of the user; none: only the model is loaded"""
    system: str | None = None
    """a message of the system before it"""
    raw: bool | None = None
    """the prompt is all that the model reads, as it is"""
    context: list[Int] | None = None
    """what an earlier answer ended with; it stands before the prompt"""
    suffix: str | None = None
    """refused"""
    template: str | None = None
    """refused"""
    images: list[Any] | None = None
    """refused"""

    def refuse_unsupported(self) -> None:
        """Refuses what would make the answer another one and is not built.

        Raises:
            RequestError: names the field.
        """
        reasons = {
            "suffix": "text is not filled in before a suffix",
            "template": "the model's own chat template is used; send raw with a whole prompt",
            "images": "images are not supported",
        }
        for name, reason in reasons.items():
            if getattr(self, name):
                raise RequestError(
                    f"{name} is not supported by this server: {reason}. Leave it out.",
                    param=name,
                    code="unsupported_parameter",
                )
        if self.raw and (self.system or self.context):
            raise RequestError(
                "A raw prompt is all that the model reads: leave out system and context.",
                param="raw",
            )
