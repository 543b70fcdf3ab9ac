"""One metric of each model, and what it is read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from twostroke.engine.health import Health
from twostroke.engine.limits import EngineStats
from twostroke.model import Model

Labels = tuple[str, ...]
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A model, its engine's counters and its health, read once for a whole page."""

    model: Model
    stats: EngineStats
    health: Health


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of each model. `read` answers its values by the labels beside `model_name`."""

    name: str
    kind: Kind
    help: str
    read: Callable[[Shown], Mapping[Labels, Any]]
    labels: Labels = ()
