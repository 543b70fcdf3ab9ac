"""Where the graphs of the configured models run: a section of `twostroke doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from twostroke.backends.discovery import Plugins
from twostroke.bundle import MANIFEST_NAME
from twostroke.config.schema import Config, ModelConfig
from twostroke.errors import TwostrokeError
from twostroke.model import Model


def model_lines(config: Config, plugins: Plugins) -> Iterator[str]:
    """Each model's name, and of a bundle on this disk on which providers its nodes are.

    That is proved and not guessed: such a model is opened, and closed again.
    """
    for model in config.models:
        yield f"{model.name}: {model.source}"
        if not (Path(model.source).expanduser() / MANIFEST_NAME).is_file():
            yield "  no bundle yet: it is made when the model is first served (`twostroke export`)"
            continue
        try:
            yield from (f"  {line}" for line in _placements(model, config, plugins))
        except TwostrokeError as error:
            yield f"  cannot be opened: {error}"


def _placements(model: ModelConfig, config: Config, plugins: Plugins) -> list[str]:
    """A line for each stroke.

    Raises:
        TwostrokeError: as `Model.from_config`.
    """
    with Model.from_config(model, config.scheduler, plugins=plugins) as opened:
        return [
            f"{stroke} on {place['backend']}, {place['device']}: {place['summary']}"
            for stroke, place in opened.status()["placement"].items()
        ]
