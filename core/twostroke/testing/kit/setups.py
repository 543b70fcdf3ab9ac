"""Set-ups: which graphs of the bundle the strokes run, and the runners that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from twostroke.engine.runner import Runner
from twostroke.types import Stroke


@dataclass(frozen=True, slots=True)
class Setup:
    """Which graphs the strokes run, by dialect, and the runner that does.

    `name` is that of the dialect, or of both (`standard+fused`) where the strokes differ.
    """

    name: str
    dialects: Mapping[Stroke, str]
    runner: Runner


def open_setups(
    open_runner: Callable[[Mapping[Stroke, str]], Runner],
    preferred: Mapping[Stroke, str],
    dialects: Sequence[str],
) -> dict[str, Setup | Exception]:
    """The preferred set-up first, then each dialect of the bundle; errors where one is refused."""
    attempts: dict[str, Setup | Exception] = {}
    for wanted in (preferred, *(dict.fromkeys(Stroke, dialect) for dialect in dialects)):
        name = setup_name(wanted)
        if name in attempts:
            continue
        try:
            attempts[name] = Setup(name, wanted, open_runner(wanted))
        except Exception as error:  # a stranger's backend may raise anything
            attempts[name] = error
    return attempts


def setup_name(dialects: Mapping[Stroke, str]) -> str:
    """The dialect's name, or both (`standard+fused`) where the strokes differ."""
    return "+".join(dict.fromkeys(dialects[stroke] for stroke in Stroke))
