"""ONNX Runtime's sessions are lost and made anew: the answers are those of before."""

from __future__ import annotations

import time

import pytest

import twostroke_backends.cpu
from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import ModelConfig
from twostroke.errors import UnhealthyError
from twostroke.model import Model
from twostroke.testing.faults import Faults
from twostroke.testing.faulty_backend import FaultyPlugin
from twostroke.testing.onnx_bundles import make_onnx_bundle

IDS = [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("stroke", ["prefill", "decode"])
def test_a_model_on_the_cpu_comes_back_as_it_was(tmp_path, stroke):
    faults = Faults()
    plugins = load_plugins(block=("cpu",), extra=[FaultyPlugin(twostroke_backends.cpu, faults)])
    config = ModelConfig(
        name="tiny", source=str(make_onnx_bundle(tmp_path / "tiny")), backend="cpu"
    )
    asked = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with Model.from_config(config, plugins=plugins) as model:
        before = model.complete(IDS, **asked)
        placement = model.placement_report
        faults.lose_device(stroke)
        with pytest.raises(UnhealthyError, match="was ordered"):
            model.complete(IDS[::-1], **asked)
        end = time.monotonic() + 60
        while not model.is_healthy:
            assert time.monotonic() < end, model.status()["health"]
            time.sleep(0.02)
        after = model.complete(IDS, **asked)
        assert after.token_ids == before.token_ids
        assert model.placement_report == placement
        assert model.status()["health"]["num_rebuilds"] == 1
        model.engine.check()
        assert (faults.num_open_sessions, faults.num_open_devices) == (2, 1)
    assert (faults.num_open_sessions, faults.num_open_devices) == (0, 0)
