"""`twostroke plan` of a YAML: whether its models fit beside each other."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from twostroke.cli import options
from twostroke.cli.progress import size
from twostroke.errors import ConfigError, OutOfMemoryError, TwostrokeError

if TYPE_CHECKING:
    from twostroke.config import Config
    from twostroke.life.room import Demand, Place

_OF_A_SOURCE = ("context", "precision", "kv_dtype")  # flags that the YAML has keys for


def plan_config(arguments: argparse.Namespace, memory_bytes: int | None) -> None:
    """Prints what each model of the YAML takes on its device, and what its cache gets there.

    `memory_bytes` None: what of the host is free now.

    Raises:
        ConfigError: the YAML is wrong, or flags were given that are for one SOURCE.
        OutOfMemoryError: models that are loaded at the start do not all fit.
    """
    given = [name for name in _OF_A_SOURCE if getattr(arguments, name) is not None]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError([f"{flags}: for one SOURCE; a YAML has keys for it (--set)"])
    config = options.read_config(arguments)
    demands, unknown = _demands(config)
    places = _places(demands, memory_bytes)
    lazy = {model.name for model in config.models if model.load == "first_use"}
    if arguments.json:
        print(json.dumps(_report(places, unknown, lazy), indent=2))
    else:
        for line in (*_lines(places, lazy), *(f"{n}: not known: {why}" for n, why in unknown)):
            print(line)
    late = [p.name for found in places.values() for p in found if not p.fits and p.name not in lazy]
    if late:
        raise OutOfMemoryError(
            f"{', '.join(late)}: no room beside the others at the start. Lower kv.budget, "
            "context_tokens or scheduler.max_rows, or set load: first_use and keep_alive_s."
        )


def _demands(config: Config) -> tuple[dict[str, Demand], list[tuple[str, str]]]:
    """What each model takes, those first that are loaded at the start; and where nobody knows."""
    from twostroke.backends.discovery import load_plugins
    from twostroke.model.demand import demand_of

    plugins = load_plugins(config.plugins.block)
    demands: dict[str, Demand] = {}
    unknown = []
    for model in sorted(config.models, key=lambda model: model.load == "first_use"):
        try:
            demand = demand_of(model, config.scheduler, plugins)
        except TwostrokeError as error:
            unknown.append((model.name, str(error)))
            continue
        if demand is None:
            unknown.append((model.name, f"its backend {model.backend!r} is not here"))
        else:
            demands[model.name] = demand
    return demands, unknown


def _places(demands: dict[str, Demand], memory_bytes: int | None) -> dict[str, list[Place]]:
    from twostroke.life.free_memory import free_memory_bytes
    from twostroke.life.room import share_out

    host_bytes = free_memory_bytes() if memory_bytes is None else memory_bytes
    by_place: dict[str, dict[str, Demand]] = {}
    for name, demand in demands.items():
        by_place.setdefault(demand.place, {})[name] = demand
    return {
        place: share_out(here, next(iter(here.values())).place_bytes or host_bytes)
        for place, here in by_place.items()
    }


def _lines(places: dict[str, list[Place]], lazy: set[str]) -> Iterator[str]:
    for place, models in places.items():
        yield f"{place}: {size(models[0].left_bytes)}"
        for model in models:
            takes = f"weights and workspace {size(model.demand.needs_bytes)}"
            row = f"a row {size(model.demand.row_bytes)}"
            when = "on first use" if model.name in lazy else "at the start"
            if model.fits:
                yield f"  {model.name}: {takes}, cache {size(model.kv_bytes)} ({row}), {when}"
            else:
                left = size(max(0, model.left_bytes))
                yield f"  {model.name}: {takes}, {row}: no room, {left} left, {when}"
        taken = sum(model.planned_bytes for model in models if model.fits)
        yield f"  together {size(taken)} at most"


def _report(
    places: dict[str, list[Place]], unknown: list[tuple[str, str]], lazy: set[str]
) -> dict[str, Any]:
    models = [
        {
            "name": model.name,
            "load": "first_use" if model.name in lazy else "start",
            **asdict(model.demand),
            "least_bytes": model.demand.least_bytes,
            "kv_bytes": model.kv_bytes,
            "left_bytes": model.left_bytes,
            "fits": model.fits,
        }
        for found in places.values()
        for model in found
    ]
    return {"models": models, "unknown": [{"name": n, "reason": why} for n, why in unknown]}
