"""Where the endpoints of a measurement run: figures say nothing without it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp

from twostroke.bench.client import Target

_TIMEOUT = aiohttp.ClientTimeout(total=10)


def find_places(targets: Sequence[Target]) -> dict[str, list[dict[str, Any]]]:
    """What each endpoint's `/health` says of its models; nothing of endpoints that have none."""
    return asyncio.run(_find(targets))


def place_lines(places: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A line for each model's strokes, e.g. `URL: small: prefill int8 on cpu, … (305 nodes …)`."""
    for label, models in places.items():
        for model in models:
            for stroke, place in model["placement"].items():
                yield (
                    f"{label}: {model['name']}: {stroke} {place['precision']} on "
                    f"{place['backend']}, {place['device']} ({place['summary']})"
                )
            if model["fallback"] is not None:
                yield f"{label}: {model['name']}: {model['fallback']}"


async def _find(targets: Sequence[Target]) -> dict[str, list[dict[str, Any]]]:
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        return {target.label: await _models(session, target) for target in targets}


async def _models(session: aiohttp.ClientSession, target: Target) -> list[dict[str, Any]]:
    try:
        async with session.get(f"{target.url}/health") as response:
            body = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return []  # another server, which says nothing of that
    models = body.get("models") if isinstance(body, dict) else None
    kept = ("name", "precision", "placement", "hand_over", "fallback")
    return [
        {key: model.get(key) for key in kept}
        for model in (models if isinstance(models, list) else [])
        if isinstance(model, dict) and isinstance(model.get("placement"), dict)
    ]
