"""Anthropic's `tools` and `tool_choice` as the use of functions that a request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.errors import RequestError
from twostroke.text.tools import ToolUse, tool_use

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def asked_tools(tools: Any, choice: Any) -> ToolUse | None:
    """What a body asks for; None where no function may be called.

    Raises:
        RequestError: with the path of the field at fault as `param`; a tool that Anthropic runs
            or describes itself (web search, bash and the like) is refused by its type.
    """
    try:
        return tool_use(_functions(tools), _choice(choice), _parallel(choice))
    except RequestError as error:
        raise _renamed(error) from None


def _functions(tools: Any) -> Any:
    if not isinstance(tools, list):
        return tools  # `tool_use` refuses what is no list
    return [_function(tool, f"tools[{number}]") for number, tool in enumerate(tools)]


def _function(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise RequestError(f"{path} must be an object.", param=path)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise RequestError(
            f"{path} is of type {str(kind)[:60]!r}; only tools that the client runs and describes "
            "are taken, with a name and an input_schema.",
            param=f"{path}.type",
        )
    if not isinstance(tool.get("input_schema"), Mapping):
        raise RequestError(
            f"{path}.input_schema must be a JSON schema, which is an object.",
            param=f"{path}.input_schema",
        )
    function = {name: tool.get(name) for name in ("name", "description", "strict")}
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


def _parallel(choice: Any) -> bool | None:
    if not isinstance(choice, Mapping):
        return None
    name = "disable_parallel_tool_use"
    is_single = choice.get(name)
    if is_single is not None and not isinstance(is_single, bool):
        raise RequestError(
            f"tool_choice.{name} must be true or false.", param=f"tool_choice.{name}"
        )
    return not is_single


def _choice(choice: Any) -> Any:
    if choice is None:
        return None
    if not isinstance(choice, Mapping):
        raise _bad_choice()
    kind, name = choice.get("type"), choice.get("name")
    if kind == "tool" and isinstance(name, str):
        return {"type": "function", "function": {"name": name}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise _bad_choice()
    return _CHOICES[kind]


def _bad_choice() -> RequestError:
    return RequestError(
        'tool_choice must be {"type": "auto"}, "any", "none", or "tool" with a name.',
        param="tool_choice",
    )


def _renamed(error: RequestError) -> RequestError:
    """`error` by the names of Anthropic's fields."""

    def renamed(text: str) -> str:
        return text.replace(".function.parameters", ".input_schema").replace(".function", "")

    param = None if error.param is None else renamed(error.param)
    return RequestError(renamed(str(error)), param=param, code=error.code, status=error.status)
