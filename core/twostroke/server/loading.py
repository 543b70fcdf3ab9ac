"""Loads the models beside the event loop, so that `/health` answers from the first moment."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from twostroke.backends.hookspecs import Progress
from twostroke.config.schema import Config, ModelConfig
from twostroke.errors import EngineError, TwostrokeError
from twostroke.model import Model
from twostroke.server.models import Models
from twostroke.types import Constraint, ConstraintKind

LoadModel = Callable[[ModelConfig, Callable[[Progress], None]], Model]


logger = logging.getLogger("twostroke.server")


class _LoadStopped(BaseException):
    """Raised inside a load when the server stops; like KeyboardInterrupt, no `Exception`."""


class Loading:
    """Owns the thread that loads the models of a configuration, one after the other.

    Models are handed to `Models` in the event loop's thread. The thread is a daemon: native code
    that loads a session cannot be interrupted, and must not keep the process.
    """

    def __init__(self, config: Config, models: Models, load: LoadModel) -> None:
        self._config = config
        self.models = models
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twostroke-loading", daemon=True)
        self.done: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Begins. `done` is resolved when every model is loaded, or with the first error."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the load soon, as Ctrl-C would in a main thread: its clean-up runs.

        The exception is raised at the thread's next Python instruction; while it is in native
        code there is none.
        """
        # In this order: were the flag first, a report could raise, and the exception that comes
        # after it would cut the clean-up short.
        if self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread.ident), ctypes.py_object(_LoadStopped)
            )
        self._stop.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        error: TwostrokeError | None = None
        try:
            error = self._load_all()
        except _LoadStopped:
            logger.debug("the load was stopped")
        self._call(self._finish, error)

    def _load_all(self) -> TwostrokeError | None:
        """Loads until the end, a stop, or the first error, which is the answer."""
        for model_config in self._config.models:
            try:
                model = self._load(model_config, self._reporter(model_config.name))
            except TwostrokeError as error:
                return error
            except Exception as error:
                logger.debug("loading failed", exc_info=error)
                return _unexpected(model_config.name, error)
            if self._stop.is_set():
                model.close()
                break
            self._call(self.models.add, _warm(model))
        return None

    def _reporter(self, name: str) -> Callable[[Progress], None]:
        def report(progress: Progress) -> None:
            if self._stop.is_set():
                raise _LoadStopped
            stage = f"{progress.stage} ({progress.fraction:.0%})"
            self._call(self.models.note_stage, name, stage)

        return report

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _finish(self, error: TwostrokeError | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _warm(model: Model) -> Model:
    """Has the vocabulary of grammars read before anybody is served; answers the model.

    That holds the GIL for half a second: with the first constrained answer it would hold up the
    event loop, and with it all that are being streamed. A model that cannot be constrained is
    served all the same; whoever asks for a constraint is told why not.
    """
    try:
        model.engine.compile(Constraint(ConstraintKind.JSON_OBJECT))
    except TwostrokeError as error:
        logger.debug("%s: answers cannot be constrained: %s", model.name, error)
    except BaseException:
        model.close()
        raise
    return model


def _unexpected(name: str, error: Exception) -> TwostrokeError:
    return EngineError(
        f"The model {name!r} could not be loaded: {type(error).__name__}: {error}. "
        "The log at level debug has the whole story."
    )
