"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from twostroke.errors import RequestError
from twostroke.server.fields import Int, Messages
from twostroke.server.surfaces.openai.functions import asked_functions
from twostroke.server.surfaces.openai.shapes import OpenAIFields, template_variables
from twostroke.text.template import ChatEnd
from twostroke.text.tools import ToolUse, tool_use


class ChatBody(OpenAIFields):
    """The body of a chat request."""

    messages: Messages
    """roles `system`, `developer`, `user`, `assistant`, `tool`, `function`; content is text, or
    parts that are"""
    logprobs: bool | None = None
    """log-probabilities of the answer's tokens"""
    top_logprobs: Int | None = None
    """alternatives of each, 0 to 20"""
    tools: Any = None  # `tool_use` checks it, and `tool_choice`
    """functions that may be called"""
    tool_choice: Any = None
    """`none`, `auto`, `required`, one function, `allowed_tools`"""
    parallel_tool_calls: bool | None = None
    """false: one call at most"""
    chat_template_kwargs: Any = None  # `check_variables` checks it
    """values that the model's chat template asks for, e.g. `{"enable_thinking": false}`"""
    reasoning_effort: str | None = None
    """for templates that ask for it"""
    verbosity: str | None = None
    """for templates that ask for it"""
    functions: Any = None  # `asked_functions` checks it, and `function_call`
    """the older form of `tools`"""
    function_call: Any = None
    """the older form of `tool_choice`"""
    prediction: Any = None  # `predicted` checks it
    """`{"type": "content", "content": …}`: what the answer probably says, e.g. a file that is
    edited; guesses come from it, the answer stays the same"""
    continue_final_message: bool | None = None
    """the answer goes on with the last message, instead of a new one"""
    add_generation_prompt: bool | None = None
    """false: the template does not begin an answer"""

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: alternatives are asked for without `logprobs`, or two fields contradict
                each other.
        """
        given = super().sampling()
        if self.logprobs:
            given["logprobs"] = self.top_logprobs or 0
        elif self.top_logprobs:
            raise RequestError(
                "top_logprobs needs logprobs; set logprobs to true.", param="top_logprobs"
            )
        return given

    def variables(self) -> dict[str, Any]:
        """Values for the chat template, for templates that ask for them.

        Raises:
            RequestError: they are wrong.
        """
        return template_variables(self.reasoning_effort, self.verbosity, self.chat_template_kwargs)

    @property
    def has_older_form(self) -> bool:
        """Whether functions are asked for as they were before there were tools."""
        return bool(self.functions) or self.function_call is not None

    def tool_use(self) -> ToolUse | None:
        """The functions that may be called.

        Raises:
            RequestError: they are wrong, or come in both forms.
        """
        if not self.has_older_form:
            return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)
        if self.tools or self.tool_choice is not None:
            raise RequestError(
                "functions and function_call are the older form of tools and tool_choice; send "
                "one form only.",
                param="functions",
            )
        return asked_functions(self.functions, self.function_call)

    def predicted(self) -> str:
        """What the answer is expected to say, "" where nothing is.

        Raises:
            RequestError: it is no text.
        """
        given = self.prediction
        if given is None:
            return ""
        content = given.get("content") if isinstance(given, dict) else None
        parts: Any = [{"text": content}] if isinstance(content, str) else content
        is_text = isinstance(parts, list) and all(
            isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts
        )
        if not is_text or given.get("type") != "content":
            raise RequestError(
                'prediction must be {"type": "content", "content": "…"}, or have text parts as '
                "content.",
                param="prediction",
            )
        return "".join(part["text"] for part in parts)

    def end(self) -> ChatEnd:
        """Where the text of the conversation ends.

        Raises:
            RequestError: two fields contradict each other.
        """
        if not self.continue_final_message:
            return ChatEnd.CLOSED if self.add_generation_prompt is False else ChatEnd.BEGUN
        if self.add_generation_prompt:
            raise RequestError(
                "add_generation_prompt begins a new message and continue_final_message goes on "
                "with the last one; set one of them.",
                param="add_generation_prompt",
            )
        return ChatEnd.OPEN
