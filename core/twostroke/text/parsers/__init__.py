"""Sections of answers: reasoning and calls, read by the family of the model's chat template."""

from twostroke.text.parsers.choose import AnswerReader, choose_reader
from twostroke.text.parsers.sections import Sections
from twostroke.text.parsers.spec import (
    ArgumentTags,
    CallArguments,
    CallBegin,
    CallForm,
    CallStyle,
    Content,
    Delta,
    ParserSpec,
    Reasoning,
    SectionParser,
    Setup,
    Tag,
)

__all__ = [
    "AnswerReader",
    "ArgumentTags",
    "CallArguments",
    "CallBegin",
    "CallForm",
    "CallStyle",
    "Content",
    "Delta",
    "ParserSpec",
    "Reasoning",
    "SectionParser",
    "Sections",
    "Setup",
    "Tag",
    "choose_reader",
]
