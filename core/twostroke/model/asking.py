"""From what a caller asks for to a request that can be submitted, and the parser of its answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.grammar.calls import calls_constraint
from twostroke.model.preparing import Prompt, compile_timed, is_chat
from twostroke.text.parsers import SectionParser
from twostroke.text.parsers.spec import new_call_id
from twostroke.text.template_variables import PARAM as VARIABLES
from twostroke.text.template_variables import check_variables
from twostroke.text.tools import ToolUse, tool_use
from twostroke.timings import Preparation
from twostroke.types import Constraint, ConstraintKind, Request, SamplingParams, TokenId

if TYPE_CHECKING:
    from twostroke.model.model import Model

_BESIDE_CALLS = (ConstraintKind.JSON_SCHEMA, ConstraintKind.JSON_OBJECT)
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks for besides the prompt."""

    sampling: SamplingParams
    constraint: Constraint | None = None
    tools: ToolUse | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the chat template

    @property
    def reads_sections(self) -> bool:
        """Whether an answer may hold reasoning and calls, and not only what a constraint says."""
        return self.constraint is None or self.tools is not None


@dataclass(frozen=True, slots=True)
class Ready:
    """A request that can be submitted. `parser` is None where the answer is nothing but text."""

    request: Request
    arrived_at: float  # time.monotonic()
    prepared: Preparation
    parser: SectionParser | None = None
    shown_ids: frozenset[TokenId] = frozenset()
    new_call_id: Callable[[], str] = new_call_id


def asked_of(model: Model, given: Mapping[str, Any]) -> Asked:
    """Sorts keyword arguments into sampling, a constraint and functions.

    Raises:
        RequestError: a value is wrong, or two contradict each other.
    """
    others = {*ConstraintKind, *_TOOLS, VARIABLES}
    sampling = model.sampling(**{name: given[name] for name in given if name not in others})
    use = tool_use(*(given.get(name) for name in _TOOLS))
    variables = check_variables(given.get(VARIABLES))
    return check_asked(Asked(sampling, constraint_from(given), use, variables))


def check_asked(asked: Asked) -> Asked:
    """Returns what it is given.

    Raises:
        RequestError: functions that may be called, and a constraint that no call could follow.
    """
    constraint = asked.constraint
    if asked.tools is not None and constraint is not None and constraint.kind not in _BESIDE_CALLS:
        raise RequestError(
            f"An answer that follows a {constraint.kind.value} cannot call functions; leave tools "
            'out, set tool_choice to "none", or ask for JSON.',
            param="tools",
        )
    return asked


def make_ready(model: Model, prompt: Prompt, asked: Asked) -> Ready:
    """Tokenises and compiles; call it in a thread where there is an event loop.

    Raises:
        RequestError: the prompt, the functions or the constraint is wrong.
    """
    arrived_at = time.monotonic()
    prompt_ids, prepared = model.encode_timed(prompt, asked.tools, asked.variables)
    constraint = asked.constraint
    if asked.tools is not None:
        constraint, prepared = compile_calls(model, prompt_ids, asked, prepared)
    else:
        prepared = compile_timed(model.engine.compile, constraint, prepared)
    request = Request(new_request_id(), prompt_ids, asked.sampling, constraint)
    if not is_chat(prompt) or not asked.reads_sections or model.reader is None:
        return Ready(request, arrived_at, prepared)
    return Ready(
        request,
        arrived_at,
        prepared,
        parser_for(model, prompt_ids, asked.tools),
        model.reader.shown_ids,
        model.reader.spec.new_call_id,
    )


def parser_for(
    model: Model, prompt_ids: tuple[TokenId, ...], tools: ToolUse | None
) -> SectionParser | None:
    """The parser of one answer in a chat; None where the model's configuration wants none."""
    if model.reader is None:
        return None
    return model.reader.read(model.tokenizer, prompt_ids, tools)


def compile_calls(
    model: Model, prompt_ids: tuple[TokenId, ...], asked: Asked, prepared: Preparation
) -> tuple[Constraint | None, Preparation]:
    """What enforces the calls that are asked for, compiled; None where nothing does.

    With a constraint in `asked`, what calls nothing follows that.

    Raises:
        RequestError: a function's schema exceeds the limits or cannot be satisfied, or the model's
            answers are not parsed.
        UnavailableError: too many are being compiled.
    """
    if model.reader is None:
        raise RequestError(
            "Calls in this model's answers are not read (its parser is none), so it cannot be "
            "given tools.",
            param="tools",
        )
    tools, text = asked.tools, asked.constraint
    assert tools is not None, "there are functions that may be called"
    if text is not None:  # on its own first, so that what is wrong with it is said of it
        prepared = compile_timed(model.engine.compile, text, prepared)
    setup = model.reader.setup(model.tokenizer, prompt_ids, tools)
    control_ids = model.tokenizer.control.ids
    constraint = calls_constraint(model.reader.spec, setup, tools, control_ids, text)
    try:
        return constraint, compile_timed(model.engine.compile, constraint, prepared)
    except RequestError as error:
        raise RequestError(f"The grammar of tools: {error}", param="tools") from None


def new_request_id() -> str:
    """A fresh id for a request."""
    return uuid.uuid4().hex
