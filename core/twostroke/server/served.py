"""A name that is served, what stands behind it right now, and who uses that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from twostroke.config.schema import ModelConfig, SamplingConfig, SchedulerConfig
from twostroke.errors import UnavailableError
from twostroke.model import Model

Clock = Callable[[], float]

RETRY_S = 5  # after which it is worth asking again for a model that is on its way
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0  # between tries of a model that could not be loaded
# What may change while a model runs: no engine knows of it, or it can be told.
_LIVE_OF_MODEL = {
    **{"name": "", "aliases": (), "load": "start", "keep_alive_s": None},
    "sampling": SamplingConfig(),
}
_LIVE_OF_SCHEDULER = {"max_queue": 0, "request_timeout_s": None}


class ModelState(StrEnum):
    """Where a model is on its way in and out of memory."""

    UNLOADED = "unloaded"  # loaded when somebody asks for it
    LOADING = "loading"  # or waiting for its turn to be
    READY = "ready"
    UNLOADING = "unloading"  # answers what was asked before, and nothing new
    FAILED = "failed"  # could not be loaded; tried again when somebody asks, after a pause


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides how a model is opened."""

    model: ModelConfig
    scheduler: SchedulerConfig

    def opens_like(self, other: Settings) -> bool:
        """Whether both make the same, but for what `Resident.take` changes."""
        mine, theirs = (
            (
                each.model.model_copy(update=_LIVE_OF_MODEL),
                each.scheduler.model_copy(update=_LIVE_OF_SCHEDULER),
            )
            for each in (self, other)
        )
        return mine == theirs

    def with_budget(self, kv_bytes: int) -> Settings:
        """The same with this budget for the KV cache."""
        kv = self.model.kv.model_copy(update={"budget": kv_bytes})
        return Settings(self.model.model_copy(update={"kv": kv}), self.scheduler)


class Resident:
    """A model in memory, and who uses it. Used in the event loop's thread only."""

    def __init__(
        self,
        model: Model,
        settings: Settings | None = None,
        clock: Clock = time.monotonic,
        *,
        kv_bytes: int | None = None,
    ) -> None:
        """`settings` are the YAML's; `kv_bytes` is the budget where they left it to the server."""
        self.model = model
        self.settings = settings
        self._has_share = kv_bytes is not None
        self._clock = clock
        self._num_leases = 0
        self.used_at = clock()  # when the last request was done with it, as far as is known

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Keeps the model in memory for as long as the body runs."""
        self._num_leases += 1
        try:
            yield
        finally:
            self._num_leases -= 1
            self.used_at = self._clock()

    def is_opened_by(self, settings: Settings) -> bool:
        """Whether opening it by `settings` would make the same."""
        return self.settings is not None and self.settings.opens_like(settings)

    def take(self, settings: Settings) -> None:
        """Goes on by settings that open it alike; others change nothing. Mutates the model."""
        if self.is_opened_by(settings):
            self.settings = settings
            self.model.change_limits(settings.scheduler, settings.model.sampling)

    def shares_files(self, settings: Settings) -> bool:
        """Whether it keeps prefixes where a model opened by `settings` would."""
        theirs = settings.model.kv.prefixes.store_path
        mine = None if self.settings is None else self.settings.model.kv.prefixes.store_path
        return mine is not None and mine == theirs

    @property
    def place(self) -> str:
        """Whose memory it takes; see `life.room`."""
        return self.model.place

    @property
    def taken_bytes(self) -> int:
        """What it should take right now."""
        return int(self.model.status()["memory"]["planned_now_bytes"])

    @property
    def planned_bytes(self) -> int:
        """The most that it may take; where nobody gave its cache a budget, what it takes now."""
        is_bounded = self.settings is not None and self.settings.model.kv.budget != "auto"
        if is_bounded or self._has_share:
            return self.model.engine.memory_plan.total_bytes
        return self.taken_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses it: no request, and no answer that outlives its request."""
        if self._num_leases:
            return False
        stats = self.model.engine.stats()
        return not stats.num_running and not stats.num_waiting

    def idle_s(self) -> float:
        """For how long nobody has used it; 0 while somebody does. Notes that. Mutates."""
        if not self.is_idle:
            self.used_at = self._clock()
        return self._clock() - self.used_at


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model could not be loaded, and when the next try is due."""

    reason: str
    num_tries: int
    retry_at: float  # on the clock of whoever loads

    @classmethod
    def after(cls, previous: Failure | None, reason: str, now: float) -> Failure:
        """The next failure in a row; the pause before the next try doubles."""
        num_tries = 1 if previous is None else previous.num_tries + 1
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (num_tries - 1), _LONGEST_PAUSE_S)
        return cls(reason, num_tries, now + pause_s)


class Served:
    """One name and its aliases. Used in the event loop's thread only.

    `settings` None: somebody else brings the model. `stage` says how far a load has come.
    """

    def __init__(self, name: str, settings: Settings | None = None) -> None:
        self.name = name
        self.settings = settings
        self.resident: Resident | None = None
        self.stage: str | None = "waiting"
        self.is_awaited = True  # the endpoint is not ready before it is loaded for the first time
        self.failure: Failure | None = None
        self.num_leaving = 0  # models of this name whose answers end before they leave memory
        self.has_fault = False  # what runs is not what its settings say: that could not be loaded
        self._context_tokens: int | None = None  # of what was loaded last
        self.num_waiting = 0  # requests that wait until it is loaded

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names that mean it."""
        return () if self.settings is None else self.settings.model.aliases

    @property
    def context_tokens(self) -> int | None:
        """Tokens that prompt and answer may take together; None where loading it will tell."""
        configured = None if self.settings is None else self.settings.model.context_tokens
        return self._context_tokens or configured

    @property
    def is_lazy(self) -> bool:
        """Whether it is loaded only when somebody asks for it."""
        return self.settings is not None and self.settings.model.load == "first_use"

    @property
    def keep_alive_s(self) -> float | None:
        """How long nobody may use it until it leaves memory; None: it stays."""
        return None if self.settings is None else self.settings.model.keep_alive_s

    def settle(self, resident: Resident) -> None:
        """Takes what was loaded."""
        self.resident = resident
        self._context_tokens = resident.model.context_tokens
        self.stage = self.failure = None
        self.is_awaited = self.has_fault = False

    @property
    def state(self) -> ModelState:
        """Where it is."""
        if self.resident is not None:
            return ModelState.READY
        if self.stage is not None:
            return ModelState.LOADING
        if self.failure is not None:
            return ModelState.FAILED
        return ModelState.UNLOADING if self.num_leaving else ModelState.UNLOADED

    def refusal(self, now: float) -> UnavailableError:
        """Why it cannot be used right now."""
        if self.failure is not None and self.stage is None:
            pause_s = max(1, round(self.failure.retry_at - now))
            return UnavailableError(
                f"The model {self.name!r} could not be loaded: {self.failure.reason} "
                f"It is tried again when it is asked for in {pause_s} s or later.",
                retry_after_s=pause_s,
            )
        if self.stage is not None:
            stage = "" if self.stage == "waiting" else f" ({self.stage})"
            return UnavailableError(
                f"The model {self.name!r} is still loading{stage}; try again shortly.",
                retry_after_s=RETRY_S,
            )
        return UnavailableError(
            f"The model {self.name!r} is not loaded; try again shortly.", retry_after_s=RETRY_S
        )
