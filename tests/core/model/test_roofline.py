"""The roofline of real graphs, with limits that were measured once and kept."""

from __future__ import annotations

import logging

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.config.schema import ModelConfig
from twostroke.errors import BundleError
from twostroke.life import limits
from twostroke.life.limits import DeviceLimits
from twostroke.model import Model

pytest.importorskip("twostroke_backends.cpu", reason="the CPU backend is not installed")
onnx_bundles = pytest.importorskip("twostroke.testing.onnx_bundles")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return onnx_bundles.make_onnx_bundle(
        tmp_path_factory.mktemp("tiny") / "bundle", onnx_bundles.TinyModel()
    )


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """How often something was measured; it finds a device of one GB/s and one GOP/s."""
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    times = []

    def measure(backend):
        times.append(backend.name)
        return DeviceLimits(1e9, 1e9, 4e9)

    monkeypatch.setattr(limits, "measure", measure)
    return times


def roofline_of(bundle, *, measure_device):
    config = ModelConfig(name="tiny", source=str(bundle), backend="cpu")
    plugins = load_plugins()
    with Model.from_config(config, plugins=plugins, measure_device=measure_device) as model:
        # A sampled answer may end with its first token, before any decode step.
        wish = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
        return model.complete(list(range(4, 40)), **wish).timings.roofline


def test_a_device_is_measured_once_and_then_known(tiny, measured):
    unknown = roofline_of(tiny, measure_device=False)
    assert unknown.decode.read_bytes_per_s > 0
    assert unknown.decode.fraction_of_bandwidth is None
    assert "`twostroke doctor`" in unknown.reason
    assert measured == []
    for measure_device in (True, True, False):
        known = roofline_of(tiny, measure_device=measure_device)
        assert known.reason is None
        assert measured == ["cpu"]
    for stroke in (known.prefill, known.decode):
        assert stroke.fraction_of_bandwidth == pytest.approx(stroke.read_bytes_per_s / 1e9)
        assert stroke.fraction_of_peak == pytest.approx(stroke.ops_per_s / 1e9)
    assert known.decode.read_bytes == unknown.decode.read_bytes, "whatever the device"


def test_a_step_reads_the_cache_behind_it(tiny, measured):
    decode = roofline_of(tiny, measure_device=False).decode
    per_token = 2 * 2 * 2 * 16 * 4  # layers, sides, heads, head_dim, float32
    weights = (decode.read_bytes - (36 + 37 + 38 + 39) * per_token) / 4
    assert weights == (decode.own_read_bytes - (36 + 37 + 38 + 39) * per_token) / 4
    shape = onnx_bundles.TinyModel()
    layer = shape.hidden_size * (64 + 2 * 32) + 64 * shape.hidden_size
    least = shape.num_layers * layer * 4
    assert weights > least, "every matrix is read once"


def test_what_was_measured_on_a_busy_machine_says_so(tiny, measured, monkeypatch):
    monkeypatch.setattr(limits, "measure", lambda backend: DeviceLimits(1e9, 1e9, 4e9, True))
    busy = roofline_of(tiny, measure_device=True)
    assert busy.decode.fraction_of_bandwidth is not None
    assert "busy" in busy.reason


def test_what_cannot_be_measured_stays_unknown_and_why_is_logged(
    tiny, measured, monkeypatch, caplog
):
    def refuse(backend):
        raise BundleError("nothing runs here")

    monkeypatch.setattr(limits, "measure", refuse)
    caplog.set_level(logging.WARNING)
    assert roofline_of(tiny, measure_device=True).decode.fraction_of_bandwidth is None
    assert "nothing runs here" in caplog.text
