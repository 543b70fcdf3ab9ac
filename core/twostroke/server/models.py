"""The models an endpoint serves, by name and alias, and whether they are ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from twostroke.config.schema import Config
from twostroke.errors import ModelNotFoundError
from twostroke.model import Model
from twostroke.server.served import Clock, ModelState, Resident, Served, Settings


class BringsModels(Protocol):
    """Who loads the models that requests ask for; see `residency.Residency`."""

    load_wait_s: float  # how long somebody waits at most

    async def wait_for(self, served: Served) -> None:
        """Returns when it is loaded.

        Raises:
            UnavailableError: it is not, and why.
        """
        ...

    def unload(self, served: Served) -> asyncio.Task[None]:
        """Takes it out of memory; the task ends when its answers have ended and it is closed."""
        ...


class Models:
    """Holds the models of one endpoint. Written by the loader, read by the surfaces.

    Every name is known from the start; its model arrives when it is loaded. Used in the event
    loop's thread only.
    """

    def __init__(self, names: Sequence[str] = (), *, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.served: dict[str, Served] = {name: Served(name) for name in names}
        self.default: str | None = None  # which answers where none is named; None: the first
        self.leaving: list[Resident] = []  # answer what was asked before, and then leave memory
        self.brings: BringsModels | None = None
        self.pending: tuple[str, ...] = ()  # settings that were changed and wait for a restart
        self.problems: tuple[str, ...] = ()  # why a changed configuration was not taken up

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are served, in the order of the configuration; without aliases."""
        return tuple(self.served)

    @property
    def is_ready(self) -> bool:
        """True from when every model was loaded that is wanted from the start."""
        return not any(each.is_awaited for each in self.served.values())

    @property
    def have_hung_threads(self) -> bool:
        """Whether one of them has a run that never came back."""
        return any(resident.model.engine.has_hung_threads for resident in self.residents())

    def serve(self, config: Config) -> None:
        """Takes the names, in their order, and the default of a configuration.

        What is served by a name that is in both keeps its state; others are forgotten: whoever
        calls this sees to models that are in memory.
        """
        known, self.served = self.served, {}
        for model in config.models:
            settings = Settings(model, config.scheduler)
            served = known.get(model.name) or Served(model.name, settings)
            served.settings = settings
            self.served[model.name] = served
        self.default = config.server.default_model

    def add(self, model: Model) -> None:
        """Makes a loaded model available under its name."""
        served = self.served[model.name]
        served.settle(Resident(model, served.settings, self.clock))

    def note_stage(self, name: str, stage: str) -> None:
        """Remembers how far the loading of a model has come, for `/health`."""
        served = self.served[name]
        if served.stage is not None:
            served.stage = stage

    def ready(self) -> tuple[Model, ...]:
        """The loaded models, in the order of the configuration."""
        residents = (each.resident for each in self.served.values())
        return tuple(resident.model for resident in residents if resident is not None)

    def residents(self) -> Iterator[Resident]:
        """All that are in memory, those on their way out last."""
        for served in self.served.values():
            if served.resident is not None:
                yield served.resident
        yield from self.leaving

    def loading(self) -> dict[str, str]:
        """The models that are being loaded or wait for it, and the stage each is at."""
        return {
            name: each.stage
            for name, each in self.served.items()
            if each.state is ModelState.LOADING and each.stage is not None
        }

    def look_up(self, name: str | None) -> Served:
        """What a request names, by name or alias; the default where it names nothing.

        Raises:
            ModelNotFoundError: no model of that name is served.
        """
        if name is None:
            name = self.default or self.names[0]
        if name in self.served:
            return self.served[name]
        for served in self.served.values():
            if name in served.aliases:
                return served
        raise ModelNotFoundError(
            f"The model {name[:80]!r} is not served here; served are: {', '.join(self.names)}.",
            param="model",
        )

    def find(self, name: str | None) -> Model:
        """The model a request names, by name or alias; the default where it names none.

        Raises:
            ModelNotFoundError: no model of that name is served.
            UnavailableError: it is not loaded.
        """
        served = self.look_up(name)
        if served.resident is None:
            raise served.refusal(self.clock())
        return served.resident.model

    async def ready_model(self, name: str | None) -> Model:
        """As `find`, and has a model loaded that is not; waits for that within a bound.

        Take a `lease` before anything else is awaited: without one the model may leave memory.
        `model_for` of the surfaces does both.

        Raises:
            ModelNotFoundError: no model of that name is served.
            UnavailableError: it is loading for too long, could not be loaded, or has no room.
        """
        served = self.look_up(name)
        if served.resident is None and self.brings is not None:
            await self.brings.wait_for(served)
        return self.find(served.name)

    def lease(self, model: Model) -> AbstractContextManager[None]:
        """Keeps a model in memory for as long as the body runs; it may be on its way out."""
        for resident in self.residents():
            if resident.model is model:
                return resident.lease()
        raise LookupError(f"{model.name} is not among the models in memory")
