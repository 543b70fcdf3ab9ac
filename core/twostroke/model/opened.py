"""What an open model is and where it runs, and its end."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from twostroke.config.schema import SamplingConfig, SchedulerConfig
from twostroke.engine.engine import Engine
from twostroke.engine.health import HealthState
from twostroke.errors import UnavailableError
from twostroke.life.metrics import EngineMetrics
from twostroke.life.room import place_of
from twostroke.model.loading import Loaded
from twostroke.model.sampling import UNADVISED
from twostroke.model.status import (
    fallback_sentence,
    health_report,
    load_report,
    memory_report,
    placement_report,
)
from twostroke.types import Stroke


class OpenedModel:
    """Owns the running engine of a model; `Model` adds what it is asked."""

    def __init__(self, name: str, loaded: Loaded, sampling: SamplingConfig | None = None) -> None:
        """Takes over a running engine; `open` and `from_config` are the usual ways here."""
        self.name = name
        self.bundle = loaded.bundle
        self.tokenizer = loaded.tokenizer
        self.template = loaded.template
        self.reader = loaded.reader  # of reasoning and calls in answers; None reads neither
        self._opened = loaded.opened
        self._is_closed = False
        self._sampling_defaults = self._defaults(sampling or SamplingConfig())

    def _defaults(self, sampling: SamplingConfig) -> Mapping[str, Any]:
        recommended = self.bundle.manifest.generation.model_dump(exclude_none=True)
        return {**UNADVISED, **recommended, **sampling.model_dump(exclude_none=True)}

    def change_limits(self, scheduler: SchedulerConfig, sampling: SamplingConfig) -> None:
        """Takes other limits and defaults for requests that come from now on.

        Those that need no new engine: length of the queue, time-out, values of sampling.
        """
        self._sampling_defaults = self._defaults(sampling)
        self.engine.change_limits(
            max_queue=scheduler.max_queue, request_timeout_s=scheduler.request_timeout_s
        )

    @property
    def engine(self) -> Engine:
        """The engine below: `submit`, `abort`, `stats`."""
        return self._opened.engine

    @property
    def metrics(self) -> EngineMetrics:
        """Counts of the engine's work since it was opened."""
        return self._opened.metrics

    @property
    def context_tokens(self) -> int:
        """Tokens that prompt and answer may take together."""
        return self._opened.engine.context_tokens

    @property
    def placement_report(self) -> dict[str, Any]:
        """For each stroke: backend, device, nodes by provider, a summary. Ready for JSON."""
        return placement_report(self._opened)

    @property
    def device_kinds(self) -> frozenset[str]:
        """What the strokes run on: `cpu`, `gpu`, `npu`."""
        return frozenset(each.backend.device.kind for each in self._opened.opened.values())

    @property
    def place(self) -> str:
        """The memory that its cache is in: the host's, or a device's; see `life.room.place_of`."""
        backend = self._opened.opened[Stroke.DECODE].backend
        return place_of(backend.name, backend.device)

    @property
    def fallback_sentence(self) -> str | None:
        """Why another backend runs than the one asked for; None where none had to take over."""
        return fallback_sentence(self._opened)

    @property
    def is_healthy(self) -> bool:
        """Whether it can answer; else its sessions were lost, and `status` says what is done."""
        return self._opened.engine.health().state is HealthState.READY

    @cached_property
    def fingerprint(self) -> str:
        """Another one where answers may come out otherwise: by bundle, place or version."""
        places = {
            stroke: [place[name] for name in ("backend", "device", "dialect", "precision")]
            for stroke, place in self.placement_report.items()
        }
        facts = self.bundle.manifest.model_dump_json()
        made_of = json.dumps([facts, places, importlib.metadata.version("twostroke")])
        return f"fp_{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"

    def status(self) -> dict[str, Any]:
        """Everything that a health check shows. Ready for JSON."""
        return {
            "name": self.name,
            "precision": self.bundle.manifest.precision,
            "context_tokens": self.context_tokens,
            "health": health_report(self._opened),
            "placement": self.placement_report,
            "placement_note": self._opened.note,
            "hand_over": self.engine.hand_over_way,
            "fallback": self.fallback_sentence,
            "memory": memory_report(self.bundle, self._opened),
            "load": load_report(self._opened),
        }

    def close(self, *, drain_timeout_s: float = 0.0) -> None:
        """Ends what still runs (after up to `drain_timeout_s`) and frees the device."""
        self._is_closed = True
        self._opened.close(drain_timeout_s=drain_timeout_s)

    def __repr__(self) -> str:
        decode = self.placement_report["decode"]
        state = ", closed" if self._is_closed else ""
        return (
            f"<twostroke.Model {self.name!r}: {self.bundle.manifest.precision} on "
            f"{decode['backend']}, context {self.context_tokens} tokens{state}>"
        )

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise UnavailableError(f"This model is closed: {self.name}. Open it again to use it.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
