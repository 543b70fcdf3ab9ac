"""Loads the models beside the event loop, so that `/health` answers from the first moment."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from twostroke.backends.hookspecs import Progress
from twostroke.config.schema import Config, ModelConfig
from twostroke.errors import EngineError, TwostrokeError
from twostroke.model import Model
from twostroke.server.models import Models

LoadModel = Callable[[ModelConfig, Callable[[Progress], None]], Model]


logger = logging.getLogger("twostroke.server")


class _LoadStopped(Exception):  # noqa: N818  # not an error: the user asked for it
    """Raised inside a load, at its next report of progress, when the server stops."""


class Loading:
    """Owns the thread that loads the models of a configuration, one after the other.

    Models are handed to `Models` in the event loop's thread. The thread is a daemon: native code
    that loads a session cannot be interrupted, and must not keep the process.
    """

    def __init__(self, config: Config, models: Models, load: LoadModel) -> None:
        self._config = config
        self._models = models
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twostroke-loading", daemon=True)
        self.done: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Begins. `done` is resolved when every model is loaded, or with the first error."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the load at its next report of progress; what it wrote so far is removed."""
        self._stop.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            for model_config in self._config.models:
                model = self._load(model_config, self._reporter(model_config.name))
                if self._stop.is_set():
                    model.close()
                    break
                self._call(self._models.add, model)
        except _LoadStopped:
            pass
        except TwostrokeError as error:
            self._call(self._finish, error)
            return
        except Exception as error:
            logger.debug("loading failed", exc_info=error)
            self._call(self._finish, _unexpected(model_config.name, error))
            return
        self._call(self._finish, None)

    def _reporter(self, name: str) -> Callable[[Progress], None]:
        def report(progress: Progress) -> None:
            if self._stop.is_set():
                raise _LoadStopped
            stage = f"{progress.stage} ({progress.fraction:.0%})"
            self._call(self._models.note_stage, name, stage)

        return report

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _finish(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _unexpected(name: str, error: Exception) -> TwostrokeError:
    return EngineError(
        f"The model {name!r} could not be loaded: {type(error).__name__}: {error}. "
        "The log at level debug has the whole story."
    )
