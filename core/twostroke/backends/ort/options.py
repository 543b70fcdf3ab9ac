"""A backend's own options, checked by us: ONNX Runtime ignores or garbles the ones it dislikes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twostroke.errors import BackendError


@dataclass(frozen=True, slots=True)
class Option:
    """One option a backend takes in the YAML.

    `kind` is bool, int, float, str or dict (a mapping of names). Numbers lie in [low, high] where
    given, texts in `choices`.
    A default of None means: leave it to the runtime.
    """

    name: str
    kind: type
    help: str
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def expected(self) -> str:
        """What a value must be, in words."""
        if self.kind is bool:
            return "true or false"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = {
            int: "a whole number",
            float: "a number",
            str: "a text",
            dict: "a mapping of names to values",
        }[self.kind]
        if self.low is not None:
            words += f" from {self.low:g}"
        if self.high is not None:
            words += f" up to {self.high:g}"
        return words

    def accepts(self, value: Any) -> bool:
        """Whether `value` has the kind and lies in the range."""
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind or (isinstance(value, float) and value != value):
            return False  # True is no number, and NaN neither
        if self.choices and value not in self.choices:
            return False
        if isinstance(value, int | float):
            low = -math.inf if self.low is None else self.low
            high = math.inf if self.high is None else self.high
            return low <= value <= high
        return True


def check_options(
    backend: str, given: Mapping[str, Any], allowed: Sequence[Option]
) -> dict[str, Any]:
    """The options with their defaults filled in.

    Raises:
        BackendError: unknown names (with the nearest and all allowed ones) or bad values, all in
            one message.
    """
    known = {option.name: option for option in allowed}
    faults = []
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            names = ", ".join(known) or "none"
            faults.append(f"there is no option {name!r}{hint}; the allowed ones are {names}")
        elif not option.accepts(value):
            faults.append(f"{name} must be {option.expected()}, not {value!r}")
    if faults:
        raise BackendError(f"The backend {backend!r} cannot take its options: {'; '.join(faults)}.")
    return {option.name: given.get(option.name, option.default) for option in allowed}
