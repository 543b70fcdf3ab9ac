"""The parsers that come with twostroke, by the same hook as a stranger's."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.backends.hookspecs import hookimpl
from twostroke.text.parsers import ParserSpec
from twostroke.text.parsers.families import FAMILIES


@hookimpl
def twostroke_parsers() -> Sequence[ParserSpec]:
    """The families of `twostroke.text.parsers.families`."""
    return FAMILIES
