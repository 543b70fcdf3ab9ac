"""What a family of models writes besides its answer, and what a parser makes of it.

A `ParserSpec` is a row of a table that plugins fill (`twostroke_parsers`). Most families need only
data: tags around reasoning, and the form of a call. `twostroke.text.parsers.sections` reads those.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

GENERIC = "generic"
"""The family of templates that no other fits."""


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a function begins; `index` counts from 0 within the answer."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A fragment of a call's arguments, as the model wrote them: JSON unless it erred."""

    index: int
    text: str


Delta = Content | Reasoning | CallBegin | CallArguments


class SectionParser(Protocol):
    """Reads one answer as it grows. It never raises: what it can't read is content."""

    def push(self, text: str) -> list[Delta]:
        """What the next piece of text makes certain. Mutates self."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back; the answer has ended. Mutates self."""
        ...


@dataclass(frozen=True, slots=True)
class Tag:
    """Text between two markers. `kind` is `reasoning`, or `content` for a wrapper to be dropped."""

    begin: str
    end: str
    kind: str = "reasoning"


class CallStyle(enum.Enum):
    """How the name and the arguments of a call are written."""

    OBJECT = "object"  # a JSON object holds both, in any order and however it is spaced
    NAMED = "named"  # the name stands between markers, the arguments behind it are JSON
    TAGGED = "tagged"  # so does the name; each argument has tags of its own (`ArgumentTags`)
    PYTHON = "python"  # a list of calls as Python writes them: [f(a=1, b="x"), g()]


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """What stands around an argument's name and its value, for `CallStyle.TAGGED`.

    Text is written as it is, everything else as JSON. A reader does not mind missing white space.
    """

    before_name: str
    before_value: str
    after: str


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are written, for reading them and for a grammar that enforces them.

    A section of calls is `opening`, calls with `separator` between them, `closing`. A call is
    `before_name`, the name, `before_arguments`, the arguments, `after`. `begin` is the marker that
    a reader looks for and `end` the one behind the section ("" where there is none). With `is_bare`
    a call may begin an answer without a marker. Between a name and `before_arguments` there may be
    `before_id` and an id, which a reader passes over.
    """

    begin: str
    end: str
    before_name: str
    before_arguments: str
    after: str
    opening: str = ""
    closing: str = ""
    separator: str | None = None  # None: one call an answer
    style: CallStyle = CallStyle.OBJECT
    is_bare: bool = False
    before_id: str = ""
    argument: ArgumentTags | None = None  # of CallStyle.TAGGED


@dataclass(frozen=True, slots=True)
class Setup:
    """What a parser is made for: one answer.

    Attributes:
        template: the model's chat template; "" where the YAML names the parser, which then expects
            everything that its family may write.
        prompt_tail: the last tokens of the prompt as text, control tokens included: an answer may
            begin inside of a section that the prompt has opened.
        function_names: functions that may be called; empty where calls are not to be read.
        is_restricted: whether calls of other functions are none, rather than passed on for the
            client to see.
        schemas: of each function, what its arguments look like (a JSON schema).
        max_calls: calls behind so many are dropped; None drops none.
    """

    template: str = ""
    prompt_tail: str = ""
    function_names: frozenset[str] = frozenset()
    is_restricted: bool = False
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_calls: int | None = None


def new_call_id() -> str:
    """A fresh id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class ParserSpec:
    """A family of chat templates. Those fields are needed that have no default.

    Attributes:
        name: what the YAML says (`parser: NAME`).
        api_version: of the plugin interface, 1.
        summary: one line for `twostroke plugins`.
        markers: groups of texts; a template that holds all of a group is of this family.
        make: a parser for one answer.
        tags: what surrounds reasoning, so that a grammar can let the model think first.
        calls: how calls are written; None where this family knows none.
        other_calls: further forms that are read and never enforced.
        control: texts of control tokens that the parser must see; others never show.
        priority: of several families that fit a template, the highest is taken.
        new_call_id: makes the ids of calls; some templates want a form of their own.
    """

    name: str
    api_version: int
    summary: str
    markers: Sequence[Sequence[str]]
    make: Callable[[ParserSpec, Setup], SectionParser]
    tags: tuple[Tag, ...] = ()
    calls: CallForm | None = None
    other_calls: tuple[CallForm, ...] = ()
    control: tuple[str, ...] = ()
    priority: int = 0
    new_call_id: Callable[[], str] = new_call_id

    def fits(self, template: str) -> bool:
        """Whether a chat template is of this family."""
        return any(all(text in template for text in group) for group in self.markers)


def active_tags(spec: ParserSpec, template: str) -> tuple[Tag, ...]:
    """The tags that a model with this template may write; all of them for template ""."""
    return tuple(
        tag for tag in spec.tags if not template or tag.begin in template or tag.end in template
    )


def open_tag(tags: Sequence[Tag], prompt_tail: str) -> Tag | None:
    """The tag that the prompt has opened and left open, if it has."""
    tail = prompt_tail.rstrip()
    return next((tag for tag in tags if tail.endswith(tag.begin.rstrip())), None)
