"""The engine: scheduler, KV cache, runner, sampler and the step loop of one model."""

from twostroke.engine.bridge import AsyncEvents, SyncEvents
from twostroke.engine.build import build_engine
from twostroke.engine.engine import Engine
from twostroke.engine.limits import EngineLimits, EngineStats

__all__ = [
    "AsyncEvents",
    "Engine",
    "EngineLimits",
    "EngineStats",
    "SyncEvents",
    "build_engine",
]
