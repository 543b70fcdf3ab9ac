"""Whether several models fit one device, and how its memory is shared out among their KV caches.

    least   weights + workspace + the budget of the cache, or one sequence where there is none
    share   one sequence + (what is left when everybody has the least) / models without a budget

A tenth of the device stays free, as in the plan of a single model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twostroke.backends.protocol import Device

HOST = "host memory"
_HEADROOM_SHARE = 10


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model takes on the device that decodes, in bytes.

    `needs_bytes` are weights and workspace, `row_bytes` is the cache of one sequence of the whole
    context, of which there are up to `num_rows`. `budget_bytes` is what the YAML gives the cache;
    None: a share. `place_bytes` is the device's memory; None: the host's, which is measured.
    """

    place: str
    needs_bytes: int
    row_bytes: int
    num_rows: int
    budget_bytes: int | None = None
    place_bytes: int | None = None

    @property
    def most_kv_bytes(self) -> int:
        """The cache of all rows."""
        return self.num_rows * self.row_bytes

    @property
    def least_bytes(self) -> int:
        """Without so much it is not loaded."""
        if self.budget_bytes is None:
            return self.needs_bytes + self.row_bytes
        return self.needs_bytes + max(self.row_bytes, min(self.budget_bytes, self.most_kv_bytes))


def place_of(backend: str, device: Device) -> str:
    """The name of the memory that models on this device share."""
    return HOST if device.kind == "cpu" else f"{backend} {device.index} ({device.name})"


def share_of(demand: Demand, others: Sequence[Demand], *, left_bytes: int, place_bytes: int) -> int:
    """The budget of a model's cache, so that `others` of the same place still find room.

    `left_bytes` of `place_bytes` are not promised to anybody. Where not all of them fit, this one
    takes what there is now, and others will have to wait until it leaves.
    """
    if demand.budget_bytes is not None:
        return demand.budget_bytes
    own_bytes = left_bytes - place_bytes // _HEADROOM_SHARE - demand.needs_bytes
    spare_bytes = own_bytes - sum(other.least_bytes for other in others) - demand.row_bytes
    num_sharers = 1 + sum(other.budget_bytes is None for other in others)
    if spare_bytes >= 0:
        own_bytes = demand.row_bytes + spare_bytes // num_sharers
    return max(demand.row_bytes, min(own_bytes, demand.most_kv_bytes))


@dataclass(frozen=True, slots=True)
class Place:
    """A model's part of a device when the ones before it are loaded: `kv_bytes` for its cache.

    `left_bytes` are what it found; `fits` says whether they are enough.
    """

    name: str
    demand: Demand
    kv_bytes: int
    left_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it can be loaded beside those before it."""
        return self.left_bytes >= self.demand.least_bytes

    @property
    def planned_bytes(self) -> int:
        """The most that it takes."""
        return self.demand.needs_bytes + min(self.kv_bytes, self.demand.most_kv_bytes)


def share_out(demands: Mapping[str, Demand], place_bytes: int) -> list[Place]:
    """What models of one place get, loaded in this order; what does not fit takes nothing."""
    left_bytes, places = place_bytes, []
    waiting = dict(demands)
    for name, demand in demands.items():
        del waiting[name]
        others = list(waiting.values())
        kv_bytes = share_of(demand, others, left_bytes=left_bytes, place_bytes=place_bytes)
        if len(demands) == 1 and demand.budget_bytes is None:
            kv_bytes = demand.most_kv_bytes
        place = Place(name, demand, kv_bytes, left_bytes)
        if place.fits:
            left_bytes -= place.planned_bytes
        places.append(place)
    return places
