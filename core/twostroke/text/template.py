"""A model's chat template: messages to the one text that the model was trained on.

The template comes from the bundle, never from a request. It is rendered as transformers renders
it, within limits on time and size.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta

from twostroke.bundle import Bundle
from twostroke.errors import BundleError, RequestError
from twostroke.text.budget import Budget, TemplateLimitError, limited
from twostroke.text.messages import Message, check_messages
from twostroke.text.sandbox import LimitedEnvironment
from twostroke.text.template_source import template_source, tokenizer_config
from twostroke.text.tokenizer import Tokenizer
from twostroke.text.tool_messages import for_templates, with_short_ids

_EXTRA_CHARS = 1_000_000
_REASONING = ("thinking", "reasoning")  # names beside `reasoning_content`
_SHORT_IDS = "length != 9"  # what Mistral's templates say of the ids of calls
_COPIES = 4  # how often a template may repeat what it was given


class ChatEnd(enum.Enum):
    """How the text of a conversation ends."""

    BEGUN = "begun"  # an answer is begun, as the template begins one
    CLOSED = "closed"  # behind the last message
    OPEN = "open"  # in the last message, which the answer goes on with


class ChatTemplate:
    """A compiled template. Immutable; `render` may run in any thread.

    `takes_tools` says whether it has a form for functions.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        """Compiles `source`; `tokens` are the texts it may ask for (`bos_token` and the like).

        Raises:
            BundleError: it is not a Jinja template.
        """
        self.source = source
        self._wants_short_ids = _SHORT_IDS in source
        self._reasoning_names = [name for name in _REASONING if _mentions(source, name)]
        self._tokens = dict(tokens or {})
        try:
            with limited(Budget(max_chars=_EXTRA_CHARS)):
                environment = LimitedEnvironment()
                self._template = environment.from_string(source)
                names = jinja2.meta.find_undeclared_variables(environment.parse(source))
                self.takes_tools = "tools" in names
        except (jinja2.TemplateError, TemplateLimitError, RecursionError) as error:
            raise BundleError(
                f"chat_template.jinja is not a template that can be used: {_sentence(error)} "
                f"Repair it at the source and export the model again."
            ) from None

    @classmethod
    def open(cls, bundle: Bundle, tokenizer: Tokenizer | None = None) -> ChatTemplate | None:
        """Reads the template of a bundle (see `template_source`); None where it has none.

        The texts of special tokens come from `tokenizer_config.json`, or, where that is silent
        and a tokenizer is given, from the manifest's ids.

        Raises:
            BundleError: the template does not compile.
        """
        source = template_source(bundle)
        if source is None:
            return None
        tokens = _tokens_of_config(bundle)
        ids = bundle.manifest.tokens
        known = {"bos_token": ids.bos_id, "eos_token": next(iter(ids.eos_ids), None)}
        for name, token_id in known.items():
            if tokenizer is not None and token_id is not None and name not in tokens:
                tokens[name] = tokenizer.token(token_id) or ""
        try:
            return cls(source, tokens)
        except BundleError as error:
            raise BundleError(f"{bundle.root}: {error}") from None

    def render(self, messages: Sequence[Message], *, end: ChatEnd = ChatEnd.BEGUN) -> str:
        """The text of a conversation, ready for an answer.

        Raises:
            RequestError: a message is malformed, or the template refuses the conversation.
        """
        return self.render_checked(check_messages(messages), end=end)

    def _shown(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages in the form that this template takes."""
        shown = for_templates(messages, self._reasoning_names)
        return with_short_ids(shown) if self._wants_short_ids else shown

    def render_checked(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        end: ChatEnd = ChatEnd.BEGUN,
    ) -> str:
        """`render` for messages that `check_messages` has returned, with functions as `tools`.

        `variables` are values of JSON that the template may ask for.
        """
        num_chars = sum(_num_chars(message) for message in messages)
        num_chars += len(json.dumps(tools or ())) + len(json.dumps(variables or {}))
        names = {
            **(variables or {}),
            **self._tokens,
            "messages": self._shown(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": end is ChatEnd.BEGUN,
        }
        try:
            with limited(Budget(max_chars=_COPIES * num_chars + _EXTRA_CHARS)):
                text = self._template.render(names)
        except TemplateLimitError as error:
            raise _refusal(f"was stopped: {error}") from None
        except MemoryError:
            raise _refusal("ran out of memory") from None
        except Exception as error:  # a template can raise anything that Python can
            raise _refusal(f"refuses this conversation: {_sentence(error)}") from None
        return _left_open(text, messages[-1]) if end is ChatEnd.OPEN else text


def _left_open(text: str, last: Mapping[str, Any]) -> str:
    """`text` up to the end of what the last message says, as transformers cuts it.

    Raises:
        RequestError: the message says nothing, or not as it was sent.
    """
    said = last["content"]
    start = text.rfind(said.strip())
    if not said.strip() or "tool_calls" in last or start < 0:
        why = "says nothing" if start >= 0 else "is not written as it was sent"
        raise RequestError(
            f"The last message cannot be gone on with: it {why}. Leave continue_final_message out.",
            param="continue_final_message",
        )
    behind = said.lstrip() if text.startswith(said.lstrip(), start) else said.strip()
    return text[: start + len(behind)]


def _mentions(source: str, name: str) -> bool:
    """Whether a template reads a field of messages."""
    quoted = f"""['"]{name}['"]"""
    return (
        re.search(rf"message(\.{name}\b|\[{quoted}])|{quoted}\s+in\s+message", source) is not None
    )


def _num_chars(message: Mapping[str, Any]) -> int:
    calls = len(json.dumps(message["tool_calls"])) if "tool_calls" in message else 0
    return calls + sum(len(text) for text in message.values() if isinstance(text, str))


def _tokens_of_config(bundle: Bundle) -> dict[str, str]:
    tokens = {}
    for name, value in tokenizer_config(bundle).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _refusal(what: str) -> RequestError:
    return RequestError(f"the model's chat template {what.rstrip('.')}.", param="messages")


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 300 else text[:300] + "…").rstrip(".") + "."
