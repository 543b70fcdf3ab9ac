from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.backends.ort import onnxruntime
from twostroke.backends.protocol import Device
from twostroke.errors import BundleError
from twostroke.life import limits, run_times
from twostroke.life.limit_graphs import product_graph
from twostroke.life.limits import DeviceLimits, device_limits, kept_limits, measure

CPU = Device(0, "A CPU", "cpu", details={"threads": "2"})
BACKEND = SimpleNamespace(name="cpu", device=CPU)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def answers(monkeypatch):
    """What the next measurements find; empty ones fail."""
    found: list[DeviceLimits] = []

    def answer(backend):
        if not found:
            raise BundleError("nothing runs here")
        return found.pop(0)

    monkeypatch.setattr(limits, "measure", answer)
    return found


@pytest.mark.parametrize("operator", ["MatMul", "MatMulInteger"])
def test_the_graphs_multiply(operator):
    kinds = {
        "MatMul": ("float32", "float32", "float32"),
        "MatMulInteger": ("uint8", "int8", "int32"),
    }
    left, right, out = kinds[operator]
    random = np.random.default_rng(0)
    a = random.integers(0, 100, (3, 5)).astype(left)
    b = random.integers(-100, 100, (5, 4)).astype(right)
    graph = product_graph(operator, 3, b, (left, out))
    session = onnxruntime().InferenceSession(graph, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(
        session.run(None, {"a": a})[0], a.astype("int64") @ b.astype("int64")
    )


def test_a_real_processor_is_measured(monkeypatch):
    monkeypatch.setattr(run_times, "BUDGET_S", 0.05)
    monkeypatch.setattr(limits, "_SIDE", 256)
    monkeypatch.setattr(limits, "_LEAST_READ_BYTES", 2**24)
    monkeypatch.setattr(limits, "_cache_bytes", lambda: 0)
    spec = load_plugins().backends["cpu"]
    backend = spec.open(spec.probe().devices[0], {})
    found = measure(backend)
    for number in (found.read_bytes_per_s, found.fp32_ops_per_s, found.int8_ops_per_s):
        assert 1e6 < number < 1e16


def test_it_is_measured_once_and_kept(answers, cache):
    answers.append(DeviceLimits(1.0, 2.0, 3.0))
    assert device_limits(BACKEND) == device_limits(BACKEND) == DeviceLimits(1.0, 2.0, 3.0)
    assert len(list(cache.rglob("*.json"))) == 1


def test_another_processor_is_another_measurement(answers):
    answers.extend([DeviceLimits(1.0), DeviceLimits(2.0)])
    other = SimpleNamespace(name="cpu", device=dataclasses.replace(CPU, details={"threads": "4"}))
    assert device_limits(BACKEND).read_bytes_per_s == 1.0
    assert device_limits(other).read_bytes_per_s == 2.0


def test_a_busy_machine_is_measured_again_and_the_better_number_kept(answers):
    answers.extend(
        [DeviceLimits(5.0, 1.0, 7.0, was_busy=True), DeviceLimits(4.0, 3.0, 8.0), DeviceLimits(9.0)]
    )
    assert "while the machine was busy" in device_limits(BACKEND).sentence()
    assert device_limits(BACKEND) == DeviceLimits(5.0, 3.0, 8.0)
    assert device_limits(BACKEND) == DeviceLimits(5.0, 3.0, 8.0)


def test_what_cannot_be_measured_is_unknown_and_said(answers, caplog):
    assert device_limits(BACKEND) == DeviceLimits()
    assert "could not be measured: nothing runs here" in caplog.text
    assert device_limits(BACKEND).sentence() == "its limits are not known"


@pytest.mark.parametrize("content", ["", "[]", '{"read_bytes_per_s": "fast"}', '{"speed": 3}'])
def test_a_damaged_file_counts_as_none(answers, cache, content):
    answers.extend([DeviceLimits(1.0), DeviceLimits(2.0)])
    device_limits(BACKEND)
    (path,) = cache.rglob("*.json")
    path.write_text(content)
    assert kept_limits("cpu", CPU) is None
    assert device_limits(BACKEND).read_bytes_per_s == 2.0


def test_a_cache_that_cannot_be_written_costs_only_time(answers, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "file"))
    answers.extend([DeviceLimits(1.0)] * 2)
    assert device_limits(BACKEND) == device_limits(BACKEND) == DeviceLimits(1.0)
    assert answers == []


def test_other_devices_say_it_themselves(answers):
    gpu = SimpleNamespace(name="gpu", device=Device(0, "G", "gpu", bandwidth_bytes_per_s=3e12))
    assert device_limits(gpu) == DeviceLimits(read_bytes_per_s=3e12)
    assert device_limits(gpu).sentence() == "reads 3000 GB/s"


def test_quantised_weights_are_multiplied_in_int8():
    found = DeviceLimits(1.0, 2.0, 3.0)
    assert [found.ops_per_s(p) for p in ("fp32", "fp16", "int8", "int4")] == [2.0, 2.0, 3.0, 3.0]
