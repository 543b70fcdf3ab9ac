"""Which models are in memory: loads them at the start or when asked for, and lets them go."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from twostroke.errors import NoRoomError, TwostrokeError, UnavailableError
from twostroke.life.heap import give_memory_back
from twostroke.server.loading import Loading, LoadModel
from twostroke.server.models import Models
from twostroke.server.room import DemandOf, Room
from twostroke.server.served import Failure, Resident, Served, Settings

logger = logging.getLogger("twostroke.server")
_DRAIN_POLL_S = 0.05
_SWEEP_S = 1.0


def _unknown(settings: Settings) -> None:
    """Nobody says what models take: each is let in."""


class Residency:
    """Brings models into memory, one at a time, and out of it.

    Used in one event loop. `load_wait_s` may change at any time.
    """

    def __init__(
        self,
        models: Models,
        load: LoadModel,
        load_wait_s: float,
        demand_of: DemandOf = _unknown,
    ) -> None:
        """`load` runs in a thread of its own, `demand_of` in one too; see `Room`."""
        self.models = models
        self.load_wait_s = load_wait_s
        self._load = load
        self._one_at_a_time = asyncio.Lock()
        self._loading: Loading | None = None
        self._tasks: dict[Served, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._room = Room(models, demand_of, self.unload)
        models.brings = self

    @property
    def is_busy(self) -> bool:
        """Whether a thread still loads a model."""
        return self._loading is not None and self._loading.is_alive

    async def start(self) -> None:
        """Loads what is wanted from the start, one after the other.

        Raises:
            TwostrokeError: the first that cannot be loaded.
        """
        for served in list(self.models.served.values()):
            if served.is_lazy:
                served.stage, served.is_awaited = None, False
        for served in list(self.models.served.values()):
            if served.is_awaited:
                await self.load(served)

    async def wait_for(self, served: Served) -> None:
        """Has a model loaded and waits for it, up to `load_wait_s`.

        Raises:
            UnavailableError: it is not there in time, could not be loaded, or has no room.
        """
        failure = served.failure
        if failure is not None and self.models.clock() < failure.retry_at:
            raise served.refusal(self.models.clock())
        served.num_waiting += 1
        try:
            await asyncio.wait_for(asyncio.shield(self._task_of(served)), self.load_wait_s)
        except TimeoutError:
            raise served.refusal(self.models.clock()) from None
        except UnavailableError as error:  # each request gets one of its own
            raise UnavailableError(str(error), retry_after_s=error.retry_after_s) from None
        except TwostrokeError:
            raise served.refusal(self.models.clock()) from None
        finally:
            served.num_waiting -= 1

    async def load(self, served: Served) -> None:
        """Loads a model where it is not loaded; whoever else asks meanwhile gets the same load.

        Raises:
            UnavailableError: there is no room for it now, or the server stops.
            TwostrokeError: it cannot be loaded.
        """
        await asyncio.shield(self._task_of(served))

    def _task_of(self, served: Served) -> asyncio.Task[None]:
        task = self._tasks.get(served)
        if task is None:
            if served.resident is None:
                served.stage = served.stage or "waiting"
            task = asyncio.ensure_future(self._load_in_turn(served))
            self._tasks[served] = task
            task.add_done_callback(lambda done: self._forget(served, done))
        return task

    def _forget(self, served: Served, task: asyncio.Task[None]) -> None:
        self._tasks.pop(served, None)
        if not task.cancelled():
            task.exception()  # seen: whoever waited has it, and the log

    async def _load_in_turn(self, served: Served) -> None:
        assert served.settings is not None, "who brings models has their settings"
        try:
            async with self._one_at_a_time:
                if served.resident is None:
                    self._settle(served, await self.open(served, served.settings))
        except UnavailableError:
            raise
        except TwostrokeError as error:
            now = self.models.clock()
            served.failure = Failure.after(served.failure, str(error), now)
            raise
        finally:
            served.stage = None

    def _settle(self, served: Served, resident: Resident) -> None:
        served.settle(resident)
        if self.models.served.get(served.name) is not served:  # taken out of the YAML meanwhile
            self.unload(served)

    async def open(self, served: Served, settings: Settings) -> Resident:
        """Opens a model beside what is loaded. For whoever holds the turn to load.

        Raises:
            UnavailableError: there is no room, or the server stops.
            TwostrokeError: it cannot be loaded.
        """
        kv_bytes = await self._room.make(served, settings)
        if self._is_stopping:
            raise UnavailableError("The server is stopping; ask another one, or try again later.")
        to_open = settings if kv_bytes is None else settings.with_budget(kv_bytes)
        note_stage = partial(self.models.note_stage, served.name)
        self._loading = Loading(to_open, self._load, note_stage)
        self._loading.start()
        model = await self._loading.done
        logger.info("%s is loaded", served.name)
        resident = Resident(model, settings, self.models.clock, kv_bytes=kv_bytes)
        self._room.learn(served, settings, resident)
        return resident

    async def reopen(self, served: Served) -> None:
        """Opens a model anew where its settings are others than what it was opened by.

        The new one is loaded beside the old one and takes its place in one step; the old one leaves
        when its answers have ended. Without room for both, or where both would keep prefixes in one
        folder, the old one leaves first, and requests wait. Else, where the new one cannot be
        loaded, the old one stays.

        Raises:
            TwostrokeError: it cannot be loaded.
        """
        async with self._one_at_a_time:
            old, settings = served.resident, served.settings
            if old is None or settings is None or old.is_opened_by(settings):
                return
            try:
                new = None if old.shares_files(settings) else await self.open(served, settings)
            except NoRoomError as error:
                logger.info(
                    "%s: the old one leaves before the new one comes: %s", served.name, error
                )
                new = None
            if new is not None:
                served.resident = None
                self._settle(served, new)
                self.let_go(served, old)
                return
            left = self.unload(served)
        await left
        await self.load(served)

    def unload(self, served: Served) -> asyncio.Task[None]:
        """Takes a model out of memory when its running answers have ended; the task is all that.

        New requests do not reach it any more, from this moment: they have it loaded again.
        """
        resident, served.resident = served.resident, None
        assert resident is not None, "what is not loaded cannot be unloaded"
        return self.let_go(served, resident)

    def let_go(self, served: Served, resident: Resident) -> asyncio.Task[None]:
        """As `unload`, of a model in whose place there is another one, or none."""
        self.models.leaving.append(resident)
        served.num_leaving += 1
        task = asyncio.ensure_future(self._close_when_idle(served, resident))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _close_when_idle(self, served: Served, resident: Resident) -> None:
        while not resident.is_idle:  # noqa: ASYNC110 - engines do not tell of their last answer
            await asyncio.sleep(_DRAIN_POLL_S)
        await asyncio.to_thread(resident.model.close)
        self.models.leaving.remove(resident)
        served.num_leaving -= 1
        logger.info("%s is out of memory", served.name)
        del resident  # its tokenizer and grammars go with it
        await asyncio.to_thread(give_memory_back)

    async def keep_watch(self) -> None:
        """Unloads models that nobody has used for as long as they may stay; until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep()

    def sweep(self) -> None:
        """Begins to unload each model whose time without use is over."""
        for served in self.models.served.values():
            resident, keep_alive_s = served.resident, served.keep_alive_s
            if resident is None:
                continue
            idle_s = resident.idle_s()
            is_wanted = served.num_waiting > 0 or not resident.is_idle
            if keep_alive_s is not None and not is_wanted and idle_s >= keep_alive_s:
                self.unload(served)

    async def stop(self, timeout_s: float) -> None:
        """Ends a load that runs, and takes no other; waits for its clean-up up to `timeout_s`."""
        self._is_stopping = True
        if self._loading is not None and self._loading.is_alive:
            self._loading.stop()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout_s)

    async def close(self) -> None:
        """Ends what still runs on the models: its streams are told so and cut off."""
        for task in self._leaving:
            task.cancel()
        for resident in list(self.models.residents()):
            await asyncio.to_thread(resident.model.close)
