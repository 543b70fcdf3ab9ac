"""What one rendering of a template may use up, and the measuring of things before they are made."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

MAX_WIDTH = 9_999
_MACRO_DEPTH = 8
_WIDE = re.compile(r"\d{5,}|%[-+ #0]*\*|%[^a-zA-Z%]*\.\*")


class TemplateLimitError(Exception):
    """A template ran too long or makes too much."""


@dataclass
class Budget:
    """What one rendering may use: characters in one text, turns of loops and calls, seconds.

    One budget serves one rendering: it counts what is used up.
    """

    max_chars: int
    max_steps: int = 300_000
    max_seconds: float = 5.0
    num_steps: int = 0
    num_written: int = 0
    started_at: float = field(default_factory=time.monotonic)

    def step(self) -> None:
        """Counts one turn of a loop or one call.

        Raises:
            TemplateLimitError: too many, or too late.
        """
        self.num_steps += 1
        if self.num_steps > self.max_steps:
            raise TemplateLimitError(f"it takes more than {self.max_steps:,} steps")
        if time.monotonic() - self.started_at > self.max_seconds:
            raise TemplateLimitError(f"it takes longer than {self.max_seconds:g} s")

    def size(self, num_chars: int) -> None:
        """Checks the length of something before (or after) it is made."""
        if num_chars > self.max_chars:
            raise TemplateLimitError(f"it makes more than {self.max_chars:,} characters")

    def write(self, text: str) -> None:
        """Counts what expressions write; macros may write the same text again."""
        self.num_written += len(text)
        self.size(self.num_written // _MACRO_DEPTH)

    def weigh(self, value: Any) -> None:
        """Walks through containers: ten nested pairs are a thousand things once written out."""
        if isinstance(value, str):
            self.size(len(value))
        elif isinstance(value, list | tuple | set | dict):
            for item in value:
                self.step()
                self.weigh(item)
                if isinstance(value, dict):
                    self.weigh(value[item])

    def collect(self, items: Iterable[Any]) -> list[Any]:
        """The items as a list, given up as soon as they hold too much text."""
        collected, num_chars = [], 0
        for item in items:
            self.step()
            num_chars += _length(item)
            self.size(num_chars)
            collected.append(item)
        return collected

    def numbers(self, *values: Any) -> None:
        """Refuses arguments that are widths or counts of an absurd size."""
        if any(isinstance(value, int) and value > MAX_WIDTH for value in values):
            raise TemplateLimitError(f"it asks for a width or count above {MAX_WIDTH:,}")

    def pattern(self, text: str) -> None:
        """Refuses format strings with such a width in them, or with one taken from elsewhere."""
        if _WIDE.search(text):
            raise TemplateLimitError(f"it formats with a width above {MAX_WIDTH:,}")

    def replace(self, text: str, args: tuple[Any, ...]) -> None:
        """Checks `text.replace(*args)`."""
        if len(args) > 1:
            self.size(len(text) + text.count(str(args[0])) * len(str(args[1])))

    def join(self, separator: str, items: Any) -> None:
        """Checks `separator.join(items)` for items that are a list."""
        if isinstance(items, list | tuple):
            texts = sum(len(item) for item in items if isinstance(item, str))
            self.size(len(separator) * len(items) + texts)

    def binary(self, operator: str, left: Any, right: Any) -> None:
        """Checks `left operator right` for the operators that make things grow."""
        if operator == "+":
            self.size(_length(left) + _length(right))
        elif operator == "*" and (isinstance(left, int) or isinstance(right, int)):
            factor, other = (left, right) if isinstance(left, int) else (right, left)
            grows = _length(other) if not isinstance(other, int) else 0
            self.size(max(factor, 0) * grows or _num_digits(left) + _num_digits(right))
        elif operator == "**" and isinstance(right, int):
            self.numbers(right, _num_digits(left) * right)
        elif operator == "%" and isinstance(left, str):
            self.pattern(left)
            self.weigh(right)


_BUDGET: ContextVar[Budget] = ContextVar("twostroke_template_budget")


@contextmanager
def limited(budget: Budget) -> Iterator[None]:
    """Puts what this thread (or task) compiles and renders under `budget`."""
    token = _BUDGET.set(budget)
    try:
        yield
    finally:
        _BUDGET.reset(token)


def current() -> Budget:
    """The budget that holds here; only inside of `limited`."""
    return _BUDGET.get()


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 1


def _num_digits(value: Any) -> int:
    return int(value).bit_length() // 3 if isinstance(value, int) else 1
