"""What a model will take, against what its engine then plans with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twostroke.backends import ProbeResult
from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.errors import ConfigError
from twostroke.life.room import HOST
from twostroke.model import Model
from twostroke.model.demand import demand_of
from twostroke.testing import echo
from twostroke.testing.onnx_bundles import make_onnx_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


def test_it_is_what_the_engine_plans_with(bundle):
    plugins, scheduler = load_plugins(), SchedulerConfig(max_rows=3)
    config = ModelConfig(name="m", source=str(bundle), backend="cpu", context_tokens=100)
    demand = demand_of(config, scheduler, plugins)
    with Model.from_config(config, scheduler, plugins=plugins) as model:
        plan = model.engine.memory_plan
        assert model.place == demand.place == HOST
    assert demand.row_bytes == plan.capacity_tokens * plan.kv_bytes_per_token
    assert demand.num_rows == 3
    assert demand.needs_bytes == pytest.approx(plan.needs.num_bytes, rel=0.2)


def test_a_budget_is_taken_along(bundle):
    config = ModelConfig.model_validate(
        {"name": "m", "source": str(bundle), "backend": "cpu", "kv": {"budget": "1MiB"}}
    )
    assert demand_of(config, SchedulerConfig(), load_plugins()).budget_bytes == 2**20


def test_of_a_backend_that_is_not_there_nothing_is_known(bundle):
    config = ModelConfig(name="m", source=str(bundle), backend="nowhere")
    assert demand_of(config, SchedulerConfig(), load_plugins()) is None


def test_a_context_that_cannot_be_is_told(bundle):
    config = ModelConfig(name="m", source=str(bundle), backend="cpu", context_tokens=9999)
    with pytest.raises(ConfigError, match="9999"):
        demand_of(config, SchedulerConfig(), load_plugins())


@pytest.mark.parametrize("memory_bytes", [4096, None])
def test_a_device_with_memory_of_its_own_is_a_place_of_its_own(bundle, memory_bytes):
    spec = load_plugins(extra=[echo]).backends["echo"]
    device = spec.probe().devices[0]
    gpu = replace(device, kind="gpu", name="card", memory_bytes=memory_bytes)
    plugins = Plugins({"echo": replace(spec, probe=lambda: ProbeResult((gpu,)))}, {}, ())
    config = ModelConfig(name="m", source=str(bundle), backend="echo")
    demand = demand_of(config, SchedulerConfig(), plugins)
    if memory_bytes is None:
        assert demand is None
    else:
        assert (demand.place, demand.place_bytes) == ("echo 0 (card)", 4096)


def test_of_a_model_on_two_devices_nothing_is_known(bundle):
    config = ModelConfig.model_validate(
        {"name": "m", "source": str(bundle), "backend": "cpu", "offload": {"backend": "cpu"}}
    )
    assert demand_of(config, SchedulerConfig(), load_plugins()) is None
