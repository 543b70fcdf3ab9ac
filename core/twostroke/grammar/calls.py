"""Grammars for calls of functions, in the form that a family of models writes them.

They are llguidance's Lark dialect. A control token of the vocabulary is written by its id there:
text that only looks like it would not be it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twostroke.errors import RequestError
from twostroke.grammar.bounds import check_schema
from twostroke.grammar.call_arguments import argument_rules, json_rule
from twostroke.text.parsers.spec import CallForm, ParserSpec, Setup, Tag, active_tags, open_tag
from twostroke.text.tools import ToolUse
from twostroke.types import Constraint, ConstraintKind, TokenId

MAX_CALLS = 16  # of one answer: small models that may call for ever do


def calls_constraint(
    spec: ParserSpec,
    setup: Setup,
    use: ToolUse,
    control_ids: Mapping[str, TokenId],
    text: Constraint | None = None,
) -> Constraint | None:
    """What an answer must look like; None where nothing is enforced or can be.

    `text` is a schema, or any object, that an answer follows which calls nothing.

    With `required` and `named` it is calls, behind reasoning where the family has it. With `auto`
    it is any text, and calls where the model begins one; families whose calls begin without a
    marker are then left alone.

    Raises:
        RequestError: a schema exceeds the limits, or this family knows no calls, or none that can
            be told from `text`.
    """
    if not use.is_enforced and text is None:
        return None
    form = spec.calls
    if form is None:
        raise RequestError(
            f"Calls of functions cannot be enforced in the format {spec.name!r} of this model; "
            'set tool_choice to "auto".',
            param="tool_choice",
        )
    for i, tool in enumerate(use.told):
        check_schema(dict(tool.parameters), f"tools[{i}].function.parameters")
    lark = _Lark(form, use, control_ids)
    tags = [tag for tag in active_tags(spec, setup.template) if tag.kind == "reasoning"]
    opened = open_tag(tags, setup.prompt_tail)
    is_marked = form.begin and (form.opening or form.before_name).startswith(form.begin)
    if use.choice != "auto":
        start = "start: thought calls"
    elif text is not None:
        if not is_marked:
            raise RequestError(
                f"In the format {spec.name!r} of this model calls begin like other JSON, so it "
                "cannot have tools and a schema; leave one of them out.",
                param="tools",
            )
        start = f"start: thought (calls | said)\nsaid: {json_rule(_schema(text))}"
    elif is_marked:
        start = lark.free_text()
    else:
        return None
    thought = lark.reasoning([opened] if opened else tags, is_open=opened is not None)
    return Constraint(ConstraintKind.GRAMMAR, "\n".join([start, thought, lark.calls()]))


def _schema(text: Constraint) -> dict[str, Any]:
    """The schema of a constraint that has been checked."""
    if text.kind is ConstraintKind.JSON_OBJECT:
        return {"type": "object"}
    schema = json.loads(text.text)
    return schema if isinstance(schema, dict) else {}


class _Lark:
    """Writes the rules of one grammar."""

    def __init__(self, form: CallForm, use: ToolUse, control_ids: Mapping[str, TokenId]) -> None:
        self._form = form
        self._use = use
        self._ids = control_ids
        longest_first = sorted(filter(None, control_ids), key=len, reverse=True)
        self._control = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def free_text(self) -> str:
        """An answer of any text, with calls wherever their marker stands in it."""
        form = self._form
        behind = self._sections(without=form.begin)
        if form.begin in self._ids:
            before = f"before: TEXT? {self._literal(form.begin)}"
        else:
            before = f"before[lazy]: ANY {_quoted(form.begin)}"
        many = "(before behind)* TEXT?" if self._use.parallel else "TEXT? | thought before behind"
        return f"start: thought {many}\n{before}\n{behind}"

    def reasoning(self, tags: Sequence[Tag], *, is_open: bool) -> str:
        """What may stand before all else; `is_open` where the prompt has begun it."""
        if not tags:
            return 'thought: ""'
        begins = ("" if is_open else self._literal(tag.begin) for tag in tags)
        whole = " | ".join(f"{begin} until_{i} space" for i, begin in enumerate(begins))
        rules = [f"thought: {whole}" if is_open else f'thought: {whole} | ""']
        rules.append('space: "\\n\\n" | "\\n" | ""')
        for i, tag in enumerate(tags):
            if self._control.match(tag.end):
                rules.append(f"until_{i}: TEXT? {self._literal(tag.end)}")
            else:
                rules.append(f"until_{i}[suffix={_quoted(tag.end)}]: /(.|\\n)*/")
        return "\n".join(rules)

    def calls(self) -> str:
        """A section of calls, and what all grammars share."""
        numbers = range(len(self._use.tools))
        return "\n".join(
            [
                f"calls: {self._section(self._form.opening)}",
                f"call: {' | '.join(f'call_{i}' for i in numbers)}",
                *(f"call_{i}: {self._call(i)}" for i in numbers),
                *(rule for i in numbers for rule in self._arguments(i)),
                "TEXT: /(.|\\n)+/",
                "ANY: /(.|\\n)*/",
            ]
        )

    def _sections(self, without: str) -> str:
        """The rule `behind`: a section whose first marker has been written."""
        form, numbers = self._form, range(len(self._use.tools))
        if not form.opening:
            bodies = " | ".join(self._call(i, without) for i in numbers)
            return f"behind: {bodies}"
        return f"behind: {self._section(form.opening.removeprefix(without))}"

    def _section(self, opening: str) -> str:
        form = self._form
        most = MAX_CALLS if self._use.parallel and form.separator is not None else 1
        more = f" ({self._literal(form.separator or '')} call){{0,{most - 1}}}" if most > 1 else ""
        return f"{self._literal(opening)} call{more} {self._literal(form.closing)}"

    def _call(self, number: int, without: str = "") -> str:
        form, name = self._form, self._use.tools[number].name
        head = (form.before_name + name + form.before_arguments).removeprefix(without)
        return f"{self._literal(head)} args_{number} {self._literal(form.after)}"

    def _arguments(self, number: int) -> Iterator[str]:
        schema = self._use.tools[number].parameters
        return argument_rules(self._form, number, schema, self._literal)

    def _literal(self, text: str) -> str:
        """Text as a sequence of strings and control tokens."""
        parts = self._control.split(text)
        return " ".join(
            f"<[{self._ids[part]}]>" if part in self._ids else _quoted(part)
            for part in parts
            if part
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
