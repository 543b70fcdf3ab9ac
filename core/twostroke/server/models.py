"""The models an endpoint serves, by name, and whether they are ready."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.errors import ModelNotFoundError, RequestError, UnavailableError
from twostroke.model import Model

_LOADING_RETRY_S = 5


class Models:
    """Holds the models of one endpoint. Written by the loader, read by the surfaces.

    Every name is known from the start; its model arrives when it is loaded. Used in the event
    loop's thread only.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._ready: dict[str, Model] = {}
        self._stages: dict[str, str] = dict.fromkeys(names, "waiting")

    @property
    def is_ready(self) -> bool:
        """True when every model is loaded."""
        return len(self._ready) == len(self.names)

    @property
    def have_hung_threads(self) -> bool:
        """Whether one of them has a run that never came back."""
        return any(model.engine.has_hung_threads for model in self._ready.values())

    def add(self, model: Model) -> None:
        """Makes a loaded model available under its name."""
        self._ready[model.name] = model
        self._stages.pop(model.name, None)

    def note_stage(self, name: str, stage: str) -> None:
        """Remembers how far the loading of a model has come, for `/health`."""
        if name in self._stages:
            self._stages[name] = stage

    def ready(self) -> tuple[Model, ...]:
        """The loaded models, in the order of the configuration."""
        return tuple(self._ready[name] for name in self.names if name in self._ready)

    def loading(self) -> dict[str, str]:
        """The models that are not loaded yet, and the stage each is at."""
        return dict(self._stages)

    def find(self, name: str | None) -> Model:
        """The model a request names; the only one where it names none.

        Raises:
            RequestError: several models are served and none is named.
            ModelNotFoundError: no model of that name is served.
            UnavailableError: the model is still loading.
        """
        if name is None:
            if len(self.names) > 1:
                raise RequestError(f"model is missing; {self._served()}", param="model")
            name = self.names[0]
        if name not in self.names:
            raise ModelNotFoundError(
                f"The model {name[:80]!r} is not served here; {self._served()}", param="model"
            )
        if name not in self._ready:
            raise UnavailableError(
                f"The model {name!r} is still loading; try again shortly.",
                retry_after_s=_LOADING_RETRY_S,
            )
        return self._ready[name]

    def _served(self) -> str:
        return f"served are: {', '.join(self.names)}."
