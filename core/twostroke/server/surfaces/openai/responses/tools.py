"""Functions in the flat form that responses have them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.errors import RequestError
from twostroke.server.surfaces.openai.responses.fields import ResponsesBody
from twostroke.text.tools import ToolUse, tool_use

_FUNCTION = ("name", "description", "parameters", "strict")


def asked_tools(body: ResponsesBody) -> ToolUse | None:
    """What `tools`, `tool_choice` and `parallel_tool_calls` ask for.

    Raises:
        RequestError: with the path of the field at fault as `param`.
    """
    tools = body.tools
    if isinstance(tools, list):
        tools = [_nested(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    try:
        return tool_use(tools, _choice(body.tool_choice), body.parallel_tool_calls)
    except RequestError as error:
        # Chat completions have a function one level deeper.
        told = str(error).replace(".function.", ".")
        param = error.param and error.param.replace(".function.", ".")
        raise RequestError(told, param=param, code=error.code) from None


def shown_tools(tools: Any) -> list[dict[str, Any]]:
    """Tools that `asked_tools` has passed, as a response repeats them."""
    return [
        {"type": "function", **{name: tool.get(name) for name in _FUNCTION}} for tool in tools or ()
    ]


def _nested(tool: Any, path: str) -> Any:
    if not isinstance(tool, Mapping):
        raise RequestError(
            f'{path} must be {{"type": "function", "name": …, "parameters": …}}.', param=path
        )
    if tool.get("type") != "function":
        raise RequestError(
            f"{path}.type {str(tool.get('type'))[:40]!r} is not supported: this server runs no "
            'tools of its own. Only "function" is taken.',
            param=f"{path}.type",
            code="unsupported_parameter",
        )
    return {"type": "function", "function": {name: tool.get(name) for name in _FUNCTION}}


def _choice(choice: Any) -> Any:
    """`tool_choice` as chat completions have it; what is no choice stays as it is."""
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "function":
        return _named(choice)
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = [_named(tool) for tool in tools] if isinstance(tools, list) else tools
        allowed = {"mode": choice.get("mode", "auto"), "tools": named}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    raise RequestError(
        'tool_choice must be "none", "auto", "required", {"type": "function", "name": …} or '
        '{"type": "allowed_tools", "mode": …, "tools": […]}.',
        param="tool_choice",
    )


def _named(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    return {"type": choice.get("type"), "function": {"name": choice.get("name")}}
