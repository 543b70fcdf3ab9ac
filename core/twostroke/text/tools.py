"""Functions that a model may call, as clients send them, checked and brought to one form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from twostroke.errors import RequestError
from twostroke.text.valid_unicode import check_unicode

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_CHOICES = (
    '"none", "auto", "required", {"type": "function", "function": {"name": …}} or '
    '{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}'
)
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """One function. `parameters` is a JSON schema; `strict` asks for calls that follow it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False

    def as_template(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**function, "parameters": self.parameters}}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says about functions. Never empty of `tools`.

    `tools` may be called. `choice` is `auto` (the model decides), `required` (it must call one) or
    `named` (it must call the only one that is left in `tools`). Without `parallel` it may call one
    at most. `listed` is what the model is told of where that is more than `tools`.
    """

    tools: tuple[Tool, ...]
    choice: Literal["auto", "required", "named"] = "auto"
    parallel: bool = True
    listed: tuple[Tool, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The functions' names."""
        return frozenset(tool.name for tool in self.tools)

    @property
    def told(self) -> tuple[Tool, ...]:
        """The functions that the model is told of."""
        return self.listed or self.tools

    @property
    def is_enforced(self) -> bool:
        """Whether a grammar guides the answer, or the part of it that is a call."""
        is_guided = not self.parallel or bool(self.listed) or any(t.strict for t in self.tools)
        return self.choice != "auto" or is_guided


def tool_use(tools: Any, choice: Any = None, parallel: bool | None = None) -> ToolUse | None:
    """What `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's surface ask for.

    None where there are no tools, or none may be called: the model is then not told of any.

    Raises:
        RequestError: with the path of the field at fault as `param`.
    """
    checked = _check_tools(tools)
    if choice is None:
        choice = "auto"
    if choice not in ("none", "auto", "required") and not isinstance(choice, Mapping):
        raise RequestError(f"tool_choice must be {_CHOICES}.", param="tool_choice")
    if choice in ("none", "auto") and not checked:
        return None
    if not checked:
        raise RequestError("tool_choice asks for a call; tools is empty.", param="tools")
    if choice == "none":
        return None
    is_parallel = parallel is not False
    if isinstance(choice, Mapping):
        if choice.get("type") == "allowed_tools":
            return _allowed(checked, choice.get("allowed_tools"), is_parallel)
        return ToolUse((_named(checked, choice, "tool_choice"),), "named", parallel=False)
    return ToolUse(checked, "auto" if choice == "auto" else "required", is_parallel)


def _allowed(tools: tuple[Tool, ...], allowed: Any, is_parallel: bool) -> ToolUse:
    """Some of the functions; the model is told of all, so that its prompt stays the same."""
    path = "tool_choice.allowed_tools"
    names = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(allowed, Mapping) or not isinstance(names, list) or not names:
        raise RequestError(
            f'{path} must be {{"mode": "auto" or "required", "tools": [{{"type": "function", '
            '"function": {"name": …}}, …]}.',
            param=path,
        )
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise RequestError(f'{path}.mode must be "auto" or "required".', param=f"{path}.mode")
    chosen = [_named(tools, each, f"{path}.tools[{i}]") for i, each in enumerate(names)]
    may_be_called = tuple(tool for tool in tools if tool in chosen)
    listed = () if may_be_called == tools else tools
    return ToolUse(may_be_called, "auto" if mode == "auto" else "required", is_parallel, listed)


def _named(tools: Sequence[Tool], choice: Any, path: str) -> Tool:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or choice.get("type") != "function":
        raise RequestError(
            f'{path} must be {{"type": "function", "function": {{"name": …}}}}.', param=path
        )
    for tool in tools:
        if tool.name == name:
            return tool
    raise RequestError(
        f"{path} names {name[:128]!r}; tools holds {', '.join(t.name for t in tools)}.",
        param=path,
    )


def _check_tools(tools: Any) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        raise RequestError("tools must be a list of functions.", param="tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(
            f"tools holds {len(tools)} functions; {MAX_TOOLS} may be.", param="tools"
        )
    checked = tuple(_check_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    names = [tool.name for tool in checked]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise RequestError(
                f"tools[{i}].function.name is {name!r}, as of another; names must differ.",
                param=f"tools[{i}].function.name",
            )
    return checked


def _check_tool(tool: Any, path: str) -> Tool:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("function"), Mapping):
        raise RequestError(
            f'{path} must be {{"type": "function", "function": {{"name": …}}}}.', param=path
        )
    if tool.get("type", "function") != "function":
        raise RequestError(f'{path}.type must be "function".', param=f"{path}.type")
    function, path = tool["function"], f"{path}.function"
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{path}.name must be 1 to 128 letters, digits and _ . : / -.", param=f"{path}.name"
        )
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{path}.description must be a string.", param=f"{path}.description")
    check_unicode(description or "", f"{path}.description")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(
            f"{path}.parameters must be a JSON schema, which is an object.",
            param=f"{path}.parameters",
        )
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{path}.strict must be true or false.", param=f"{path}.strict")
    return Tool(name, description or "", parameters or _NO_PARAMETERS, bool(strict))
