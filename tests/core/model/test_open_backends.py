"""Lost backends are opened again as they were, and closed once."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.backends.hookspecs import hookimpl
from twostroke.backends.protocol import BackendSpec, ProbeResult
from twostroke.config.schema import ModelConfig, StrokeConfig
from twostroke.errors import UnhealthyError
from twostroke.model import Model
from twostroke.testing import echo
from twostroke.testing.faults import Faults
from twostroke.testing.faulty_backend import FaultyPlugin


class Absent:
    """A plugin whose device is never there."""

    @hookimpl
    def twostroke_backends(self) -> list[BackendSpec]:
        (spec,) = echo.twostroke_backends()
        return [replace(spec, name="absent", probe=lambda: ProbeResult(reason="no such device"))]


def lose_and_recover(model: Model, faults: Faults) -> None:
    faults.lose_device()
    with pytest.raises(UnhealthyError):
        model.complete("abc")
    end = time.monotonic() + 60
    while not model.is_healthy:
        assert time.monotonic() < end, model.status()["health"]
        time.sleep(0.02)


def options(model: Model) -> list[dict]:
    return [opened.backend._backend.options for opened in model._opened.opened.values()]


def test_each_stroke_gets_its_own_back_with_its_options(echo_bundle):
    faults = Faults()
    config = ModelConfig(
        name="echo",
        source=str(echo_bundle),
        backend="echo",
        decode=StrokeConfig(options={"step_delay_s": 0.0001}),
    )
    plugins = load_plugins(extra=[FaultyPlugin(echo, faults)])
    with Model.from_config(config, plugins=plugins) as model:
        before, backends = options(model), model._opened.backends.pair
        lose_and_recover(model, faults)
        assert options(model) == before
        assert before[0] != before[1]
        assert not set(map(id, model._opened.backends.pair)) & set(map(id, backends))
        assert (faults.num_devices_opened, faults.num_open_devices) == (4, 2)
        assert model.complete("abc").text == "→abc"
    assert (faults.num_open_devices, faults.num_open_sessions) == (0, 0)


def test_one_that_took_over_comes_back_with_its_own_options(echo_bundle):
    faults = Faults()
    config = ModelConfig(
        name="echo",
        source=str(echo_bundle),
        backend="absent",
        options={"gpu_mem_limit": 1},  # no option of the one that takes over
        fallback=("echo",),
    )
    plugins = load_plugins(extra=[FaultyPlugin(echo, faults), Absent()])
    with Model.from_config(config, plugins=plugins) as model:
        told = model.fallback_sentence
        lose_and_recover(model, faults)
        assert model.complete("abc").text == "→abc"
        assert model.fallback_sentence == told
        assert faults.num_open_devices == 1
