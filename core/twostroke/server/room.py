"""Room for a model in memory: whether it fits beside what is loaded, and who may leave for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from twostroke.errors import NoRoomError, TwostrokeError
from twostroke.life.free_memory import free_memory_bytes
from twostroke.life.room import Demand, share_of
from twostroke.server.models import Models
from twostroke.server.served import RETRY_S, Resident, Served, Settings

logger = logging.getLogger("twostroke.server")

DemandOf = Callable[[Settings], Demand | None]


class Room:
    """Knows what each model takes and what each device has left.

    Used in one event loop by whoever holds the turn to load. A model of which it is not known what
    it takes is let in: its own plan, made while it is loaded, may still refuse.
    """

    def __init__(
        self,
        models: Models,
        demand_of: DemandOf,
        unload: Callable[[Served], Awaitable[None]],
    ) -> None:
        """`demand_of` runs in a thread; `unload` is for models that nobody uses."""
        self._models = models
        self._demand_of = demand_of
        self._unload = unload
        self._at_first_bytes = free_memory_bytes()  # of the host, before the first model
        self._known: dict[str, tuple[Settings, Demand | None]] = {}

    async def make(self, served: Served, settings: Settings) -> int | None:
        """Has idle models leave until there is room; the budget for the cache, in bytes.

        None: what the settings say, which without other models may be all that is left.

        Raises:
            NoRoomError: there is none; the message has the figures.
        """
        demand = await asyncio.to_thread(self._demand, served.name, settings)
        if demand is None:
            return None
        await self._make_for(served, demand)
        absent = [
            each
            for each in self._models.served.values()
            if each.resident is None and each is not served and each.settings is not None
        ]
        if len(self._models.served) == 1 or demand.budget_bytes is not None:
            return None
        others = await asyncio.to_thread(self._demands, absent)
        return share_of(
            demand,
            [other for other in others if other.place == demand.place],
            left_bytes=self._left_bytes(demand),
            place_bytes=demand.place_bytes or self._at_first_bytes,
        )

    def learn(self, served: Served, settings: Settings, resident: Resident) -> None:
        """Takes what a loaded model's own plan says for what the next load of it will take."""
        known = self._known.get(served.name)
        if known is None or known[1] is None or known[1].place != resident.place:
            return
        plan = resident.model.engine.memory_plan
        row_bytes = plan.capacity_tokens * plan.kv_bytes_per_token
        needs_bytes = plan.needs.num_bytes + plan.spare_bytes
        exact = replace(known[1], needs_bytes=needs_bytes, row_bytes=row_bytes)
        self._known[served.name] = settings, exact

    async def _make_for(self, served: Served, demand: Demand) -> None:
        left_bytes = self._left_bytes(demand)
        leaving: list[Served] = []
        for each, resident in self._may_leave(served, demand.place):
            if left_bytes >= demand.least_bytes:
                break
            left_bytes += resident.planned_bytes
            leaving.append(each)
        if left_bytes < demand.least_bytes:
            raise NoRoomError(self._refusal(served.name, demand, left_bytes), retry_after_s=RETRY_S)
        for each in leaving:
            logger.info("%s leaves memory to make room for %s", each.name, served.name)
            await self._unload(each)

    def _may_leave(self, wanting: Served, place: str) -> list[tuple[Served, Resident]]:
        """Who nobody uses and need not stay, the one first that was used longest ago."""
        found = [
            (each, each.resident)
            for each in self._models.served.values()
            if each.resident is not None
            and each is not wanting
            and each.keep_alive_s is not None
            and not each.num_waiting
            and each.resident.place == place
            and each.resident.is_idle
        ]
        return sorted(found, key=lambda each: each[1].used_at)

    def _left_bytes(self, demand: Demand) -> int:
        """What of a place is promised to nobody.

        Of the host both what the system has now, less what models may still take of it, and what
        it had at first, less all that they may take: pages of mapped files count as free.
        """
        here = [each for each in self._models.residents() if each.place == demand.place]
        planned_bytes = sum(each.planned_bytes for each in here)
        if demand.place_bytes is not None:
            return demand.place_bytes - planned_bytes
        still_bytes = planned_bytes - sum(each.taken_bytes for each in here)
        return min(self._at_first_bytes - planned_bytes, free_memory_bytes() - max(0, still_bytes))

    def _refusal(self, name: str, demand: Demand, most_bytes: int) -> str:
        here = [each for each in self._models.residents() if each.place == demand.place]
        others = ", ".join(f"{each.model.name} {_size(each.planned_bytes)}" for each in here)
        beside = f" beside {others}" if others else ""
        return (
            f"There is no room for the model {name!r} now: it takes at least "
            f"{_size(demand.least_bytes)} of {demand.place}, and {_size(max(0, most_bytes))} "
            f"can be had{beside}. Ask again later, or unload a model."
        )

    def _demands(self, absent: Iterable[Served]) -> list[Demand]:
        found = (self._demand(each.name, each.settings) for each in absent if each.settings)
        return [demand for demand in found if demand is not None]

    def _demand(self, name: str, settings: Settings) -> Demand | None:
        known = self._known.get(name)
        if known is None or known[0] != settings:
            try:
                demand = self._demand_of(settings)
            except TwostrokeError as error:
                logger.info("%s: what it takes is not known before it is loaded: %s", name, error)
                demand = None
            known = self._known[name] = settings, demand
        return known[1]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
