"""Loads a model beside the event loop, so that everybody else is answered meanwhile."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from twostroke.backends.hookspecs import Progress
from twostroke.errors import EngineError, TwostrokeError, UnavailableError
from twostroke.model import Model
from twostroke.server.served import Settings
from twostroke.types import Constraint, ConstraintKind

LoadModel = Callable[[Settings, Callable[[Progress], None]], Model]


logger = logging.getLogger("twostroke.server")


class _LoadStopped(BaseException):
    """Raised inside a load when the server stops; like KeyboardInterrupt, no `Exception`."""


class Loading:
    """Owns the thread that loads a model.

    The model is handed over in the event loop's thread. The thread is a daemon: native code that
    loads a session cannot be interrupted, and must not keep the process.
    """

    def __init__(
        self, settings: Settings, load: LoadModel, note_stage: Callable[[str], None]
    ) -> None:
        """`note_stage` is told in the event loop's thread how far the load has come."""
        self._settings = settings
        self._load = load
        self._note_stage = note_stage
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="twostroke-loading", daemon=True)
        self.done: asyncio.Future[Model] = self._loop.create_future()

    def start(self) -> None:
        """Begins. `done` is resolved with the model, or with why there is none."""
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
        outcome: Model | TwostrokeError = UnavailableError("The load was stopped.")
        try:
            outcome = self._open()
        except _LoadStopped:
            logger.debug("the load was stopped")
        self._call(self._finish, outcome)

    def _open(self) -> Model | TwostrokeError:
        """Loads until the end, a stop, or an error, which is the answer."""
        try:
            model = self._load(self._settings, self._report)
        except TwostrokeError as error:
            return error
        except Exception as error:
            logger.debug("loading failed", exc_info=error)
            return _unexpected(self._settings.model.name, error)
        if self._stop.is_set():
            model.close()
            return UnavailableError("The load was stopped.")
        return _warm(model)

    def _report(self, progress: Progress) -> None:
        if self._stop.is_set():
            raise _LoadStopped
        self._call(self._note_stage, f"{progress.stage} ({progress.fraction:.0%})")

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _finish(self, outcome: Model | TwostrokeError) -> None:
        if self.done.done():
            return
        if isinstance(outcome, TwostrokeError):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


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
        f"{type(error).__name__} while {name!r} was being loaded: {error}. "
        "The log at level debug has the whole story."
    )
