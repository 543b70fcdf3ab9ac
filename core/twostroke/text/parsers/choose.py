"""Which parser reads a model's answers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from twostroke.errors import ConfigError
from twostroke.text.parsers.spec import ParserSpec, SectionParser, Setup
from twostroke.text.tokenizer import Tokenizer
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

    def read(
        self,
        tokenizer: Tokenizer,
        prompt_ids: tuple[TokenId, ...],
        function_names: frozenset[str] = frozenset(),
    ) -> SectionParser:
        """A parser for one answer, which may call the named functions."""
        tail = prompt_tail(tokenizer, prompt_ids)
        return self.spec.make(self.spec, Setup(self.template, tail, function_names))


def prompt_tail(tokenizer: Tokenizer, prompt_ids: tuple[TokenId, ...]) -> str:
    """The end of a prompt as text, control tokens written out."""
    spelt = b"".join(tokenizer.spelling(token_id) for token_id in prompt_ids[-_TAIL_TOKENS:])
    return spelt.decode("utf-8", "replace")


def choose_reader(
    specs: Mapping[str, ParserSpec], asked: str, template: str | None, tokenizer: Tokenizer
) -> AnswerReader | None:
    """The reader for a chat template; None where the YAML says `none` or there is no template.

    `asked` is `auto`, `none` or a family's name.

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
    ids, special = tokenizer.control.ids, tokenizer.decoding.special_ids
    shown = frozenset(ids[word] for word in spec.control if word in ids and ids[word] in special)
    return AnswerReader(spec, text, shown)
