"""Which parser reads a model's answers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from twostroke.errors import ConfigError
from twostroke.text.parsers.spec import GENERIC, ParserSpec, SectionParser, Setup
from twostroke.text.tokenizer import Tokenizer
from twostroke.text.tools import ToolUse
from twostroke.types import TokenId

_TAIL_TOKENS = 16


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """A model's parser: the family, and the template that it was recognised by ("": named).

    `shown_ids` are the control tokens that become text for it, although they show nowhere else.
    """

    spec: ParserSpec
    template: str
    shown_ids: frozenset[TokenId]

    def setup(
        self, tokenizer: Tokenizer, prompt_ids: tuple[TokenId, ...], use: ToolUse | None = None
    ) -> Setup:
        """What one answer's parser is made for: the answer may call the functions of `use`."""
        tail = prompt_tail(tokenizer, prompt_ids)
        if use is None:
            return Setup(self.template, tail)
        schemas = {tool.name: tool.parameters for tool in use.tools}
        max_calls = None if use.parallel else 1
        return Setup(self.template, tail, use.names, bool(use.listed), schemas, max_calls)

    def read(
        self, tokenizer: Tokenizer, prompt_ids: tuple[TokenId, ...], use: ToolUse | None = None
    ) -> SectionParser:
        """A parser for one answer, which may call the functions of `use`."""
        return self.spec.make(self.spec, self.setup(tokenizer, prompt_ids, use))


def prompt_tail(tokenizer: Tokenizer, prompt_ids: tuple[TokenId, ...]) -> str:
    """The end of a prompt as text, control tokens written out."""
    spelt = b"".join(tokenizer.spelling(token_id) for token_id in prompt_ids[-_TAIL_TOKENS:])
    return spelt.decode("utf-8", "replace")


def choose_reader(
    specs: Mapping[str, ParserSpec],
    asked: str,
    template: str | None,
    tokenizer: Tokenizer,
    *,
    takes_tools: bool = True,
) -> AnswerReader | None:
    """The reader for a chat template; None where the YAML says `none` or there is no template.

    `asked` is `auto`, `none` or a family's name. A model whose template has no form for tools
    (`takes_tools`) is told of them in the form of `generic`, so that is the one it answers in;
    where a family is named, its own comes first all the same.

    Raises:
        ConfigError: no parser has the name.
    """
    if asked == "none" or (asked == "auto" and (template is None or not specs)):
        return None
    if asked == "auto":
        text = template or ""
        spec = max((s for s in specs.values() if s.fits(text)), key=lambda s: s.priority)
    elif asked in specs:
        spec, text = specs[asked], ""
    else:
        near = difflib.get_close_matches(asked, specs, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(specs))}."
        raise ConfigError([f"models[].parser: no parser is named {asked!r}; {hint}"])
    plain = specs.get(GENERIC)
    if not takes_tools and plain is not None:
        spec = _with_plain_calls(spec, plain, is_named=asked != "auto")
    ids, special = tokenizer.control.ids, tokenizer.decoding.special_ids
    shown = frozenset(ids[word] for word in spec.control if word in ids and ids[word] in special)
    return AnswerReader(spec, text, shown)


def _with_plain_calls(spec: ParserSpec, plain: ParserSpec, *, is_named: bool) -> ParserSpec:
    """`spec`, reading the calls of `plain` as well: first, unless the YAML names it."""
    if spec.make is not plain.make:
        return spec
    own, told = [spec.calls, *spec.other_calls], plain.calls
    forms = [*own, told] if is_named else [told, *own]
    known = [form for i, form in enumerate(forms) if form is not None and form not in forms[:i]]
    control = (*spec.control, *plain.control)
    return replace(
        spec, calls=next(iter(known), None), other_calls=tuple(known[1:]), control=control
    )
