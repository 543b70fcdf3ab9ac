"""The readers of sections of calls, by the style of their form."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.text.parsers.call_section import CallSection, NamedCalls, ObjectCalls
from twostroke.text.parsers.python_calls import PythonCalls
from twostroke.text.parsers.spec import CallForm, CallStyle, Setup
from twostroke.text.parsers.tagged_calls import TaggedCalls

FIRST_OF_BARE = {CallStyle.OBJECT: "{", CallStyle.PYTHON: "["}
"""What a call begins with that stands without a marker."""


def open_section(
    form: CallForm, marker: str, index: int, setup: Setup, *, is_bare: bool = False
) -> CallSection:
    """The reader of a section of calls in `form`, whose `marker` has been read.

    A bare call, which has no marker, is one only where it names a function that may be called.
    """
    is_picky = is_bare or setup.is_restricted or form.style is CallStyle.PYTHON
    only = setup.function_names if is_picky else None
    if form.style is CallStyle.TAGGED:
        return TaggedCalls(form, marker, index, only, setup.schemas)
    kinds: dict[CallStyle, Callable[..., CallSection]] = {
        CallStyle.OBJECT: ObjectCalls,
        CallStyle.NAMED: NamedCalls,
        CallStyle.PYTHON: PythonCalls,
    }
    return kinds[form.style](form, marker, index, only)
