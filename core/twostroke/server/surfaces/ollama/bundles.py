"""The bundle behind a name: that of the model in memory, or the one that would be loaded."""

from __future__ import annotations

import asyncio
from pathlib import Path

from twostroke.bundle import MANIFEST_NAME, Bundle, is_bundle, open_bundle
from twostroke.errors import TwostrokeError
from twostroke.server.served import Served
from twostroke.source import locate
from twostroke.text.template_source import template_source


async def bundle_of(served: Served) -> Bundle | None:
    """None where it takes a load to know it: the source is no bundle, or a broken one."""
    if served.resident is not None:
        return served.resident.model.bundle
    if served.settings is None:
        return None
    return await asyncio.to_thread(_found, served.settings.model.source)


async def template_of(served: Served, bundle: Bundle | None) -> str | None:
    """The text of its chat template; None where there is none, or it is not known."""
    if served.resident is not None:
        template = served.resident.model.template
        return None if template is None else template.source
    return None if bundle is None else await asyncio.to_thread(_template, bundle)


def _found(source: str) -> Bundle | None:
    try:
        located = locate(source)
        if not isinstance(located, Path):
            return None
        folder = located.parent if located.name == MANIFEST_NAME else located
        return open_bundle(folder, check_hashes=False) if is_bundle(folder) else None
    except TwostrokeError:
        return None


def _template(bundle: Bundle) -> str | None:
    try:
        return template_source(bundle)
    except TwostrokeError:
        return None
