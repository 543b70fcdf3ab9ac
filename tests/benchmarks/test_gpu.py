"""The script for machines with a GPU: everything in it that needs none."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.bundle import open_bundle
from twostroke.errors import BackendError
from twostroke_backends import cuda

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu

    return gpu


@pytest.fixture
def small(script):
    from gpu_model import SyntheticModel

    sizes = {"num_layers": 1, "hidden_size": 64, "num_heads": 2, "num_kv_heads": 1}
    return SyntheticModel(**sizes, head_dim=32, ffn_size=96, context_tokens=160, num_ids=300)


@pytest.mark.skipif(cuda.probe().is_available, reason="there is a GPU here")
def test_without_a_gpu_it_says_why_and_measures_nothing(script, tmp_path, capsys):
    assert script.main(["--out", str(tmp_path / "gpu.json")]) == 2
    assert capsys.readouterr().err == f"No GPU can be used here: {cuda.probe().reason}\n"
    assert not (tmp_path / "gpu.json").exists()


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_a_synthetic_model_is_measured(script, small, tmp_path, precision):
    bundle = open_bundle(script.write_model(tmp_path / precision, precision, small))
    spec = load_plugins().backends["cpu"]
    backend = spec.open(spec.probe().devices[0], {"share_weights": False})
    ticks = iter(range(10**6))
    found = script.measure(
        bundle,
        backend,
        {"x": 1},
        prompts=(32, 500),
        rows=(1, 2),
        past=(16, 400),
        clock=lambda: float(next(ticks)),
    )
    assert found.prefill_tokens_per_s == {32: 32.0}  # a second a run
    assert [(d.num_rows, d.past_tokens) for d in found.decode] == [(1, 16), (2, 16)]
    assert [d.tokens_per_s for d in found.decode] == [1.0, 2.0]
    one, two = (d.read_bytes for d in found.decode)
    assert two - one == (16 + 24) * 2 * 32 * 2  # another row's keys and values in halves
    on_disk = (bundle.root / "weights.bin").stat().st_size
    assert 0.3 * on_disk < one < 1.2 * on_disk
    backend.close()
    report = script.Report({"name": "G"})
    report.figures.append(found)
    told = json.loads(json.dumps(report.to_json()))
    assert told["figures"][0]["decode"][1]["num_rows"] == 2
    header, first, second = script.table(report.figures)
    assert "of HBM" in header
    assert first.split() == [precision, "x=1", "1", "16", "1000.000", "1", "-", "32:", "32", "-"]
    assert second.split()[:3] == [precision, "x=1", "2"]


def test_int4_weights_take_about_a_quarter(script, small, tmp_path):
    sizes = [
        (script.write_model(tmp_path / p, p, small) / "weights.bin").stat().st_size
        for p in ("fp16", "int4")
    ]
    tables = 2 * 300 * 64 * 2  # head and embedding stay halves
    rotary = (160 + 16) * 32 * 2
    products, quantised = (size - tables - rotary for size in sizes)
    assert quantised / products == pytest.approx((0.5 + 2 / 32) / 2, rel=0.1)


def test_a_stage_tells_what_it_printed_last_where_it_fails(script):
    report, deadline = script.Report({}), time.monotonic() + 60
    good = [sys.executable, "-c", "print('first'); print('fine')"]
    bad = [sys.executable, "-c", "print('why'); raise SystemExit(3)"]
    assert script.run(report, "good", good, 60, deadline)
    assert not report.has_failed
    assert not script.run(report, "bad", bad, 60, deadline)
    assert not script.run(report, "late", good, 60, time.monotonic() - 1)
    assert [(s["name"], s["outcome"], s["told"]) for s in report.stages] == [
        ("good", "passed", "fine"),
        ("bad", "failed", "why"),
        ("late", "left out", "no time left"),
    ]
    assert report.has_failed


def test_a_stage_that_takes_too_long_is_ended(script):
    report = script.Report({})
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert not script.run(report, "slow", command, 0.2, time.monotonic() + 60)
    assert report.stages[0]["told"] == "took longer than 0 s"


def test_a_bundle_that_cannot_be_measured_fails_its_stage_only(script, monkeypatch):
    report = script.Report({})

    def refuse():
        raise BackendError("no such thing")

    script.measure_all(report, "broken", refuse, time.monotonic() + 60)
    script.measure_all(report, "late", refuse, time.monotonic() - 1)
    assert [(s["outcome"], s["told"]) for s in report.stages] == [
        ("failed", "no such thing"),
        ("left out", "no time left"),
    ]
