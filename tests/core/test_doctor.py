from __future__ import annotations

import re

import pytest

from twostroke.backends import BackendSpec, Device, ProbeResult
from twostroke.backends.discovery import PluginRecord, Plugins, load_plugins
from twostroke.config.schema import Config, ModelConfig
from twostroke.doctor import format_doctor, format_plugins
from twostroke.install import RuntimeDistribution
from twostroke.source import cache_root
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle

RECORDS = (
    PluginRecord("cpu", "twostroke", "1.0", "loaded", backends=("cpu",), exporters=("maker",)),
    PluginRecord("acme", "acme-npu", "2.0", "failed", "ImportError: libacme.so\nis missing"),
    PluginRecord("old", "old-npu", "0.1", "blocked", "named in `plugins.block`"),
)


def plugins(*specs: BackendSpec) -> Plugins:
    return Plugins({spec.name: spec for spec in specs}, {}, RECORDS)


def spec(name: str, priority: int, *devices: Device, reason: str = "") -> BackendSpec:
    found = ProbeResult(devices, reason)
    return BackendSpec(name, 1, f"what {name} is", lambda: found, lambda *_: None, priority)


CPU = spec("cpu", 0, Device(0, "A CPU", "cpu", 8 << 30, 20e9, details={"instruction_sets": "avx2"}))
GPU = spec("gpu", 10, reason="libgpu.so is missing: install it.")


def test_each_plugin_is_told_with_what_became_of_it():
    lines = format_plugins(plugins()).splitlines()
    assert lines == [
        "loaded  cpu (twostroke 1.0): backend cpu, exporter maker",
        "failed  acme (acme-npu 2.0)",
        "        ImportError: libacme.so",
        "        is missing",
        "blocked old (old-npu 0.1)",
        "        named in `plugins.block`",
    ]
    assert "reinstall twostroke" in format_plugins(Plugins({}, {}, ()))


def test_the_report_of_a_machine_that_can_serve():
    report, is_healthy = format_doctor(plugins(CPU, GPU))
    assert is_healthy
    assert report.endswith("ready: `backend: auto` takes cpu")
    assert "gpu: not here: libgpu.so is missing: install it." in report
    assert "device 0: A CPU, 8.0 GiB, 20 GB/s, instruction sets: avx2" in report
    assert "graphs: prefill fused, decode fused" in report
    assert report.index("gpu:") < report.index("cpu:")  # as `auto` looks at them
    assert "failed  acme (acme-npu 2.0)" in report
    assert str(cache_root()) in report


def test_the_nodes_of_configured_bundles_are_counted_by_provider(tmp_path):
    bundle = make_onnx_bundle(tmp_path / "tiny", TinyModel())
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "bundle.json").write_text("{}", encoding="utf-8")
    models = [
        ModelConfig(name="here", source=str(bundle), backend="cpu"),
        ModelConfig(name="broken", source=str(broken)),
        ModelConfig(name="later", source=str(tmp_path / "model.gguf")),
    ]
    report, is_healthy = format_doctor(load_plugins(), Config(models=models))
    assert is_healthy
    lines = report[report.index("\nmodels\n") :].splitlines()
    here, broken_at, later = (
        next(i for i, line in enumerate(lines) if line.strip().startswith(f"{model.name}: "))
        for model in models
    )
    assert [line.split(" on ")[0].strip() for line in lines[here + 1 : broken_at]] == [
        "prefill",
        "decode",
    ]
    for line in lines[here + 1 : broken_at]:
        assert re.search(r"cpu, .*: .*\d+ nodes? on CPUExecutionProvider", line), line
    assert "cannot be opened" in lines[broken_at + 1]
    assert "no bundle yet" in lines[later + 1]


def test_without_a_device_it_is_not_ready():
    report, is_healthy = format_doctor(plugins(GPU))
    assert not is_healthy
    assert report.endswith("not ready: see above")


@pytest.mark.parametrize(
    ("runtimes", "said"),
    [
        ((RuntimeDistribution("onnxruntime", "1.20.0"),), "too old"),
        (
            (RuntimeDistribution("onnxruntime", "1.31"), RuntimeDistribution("ort-nightly", "2")),
            "pip uninstall -y onnxruntime ort-nightly",
        ),
    ],
)
def test_a_wrong_onnxruntime_is_not_ready(monkeypatch, runtimes, said):
    monkeypatch.setattr("twostroke.doctor.installed_runtimes", lambda: runtimes)
    report, is_healthy = format_doctor(plugins(CPU))
    assert not is_healthy
    assert said in report


def test_a_missing_export_package_is_told_with_what_brings_it(monkeypatch):
    monkeypatch.setattr("twostroke.doctor._EXPORT_PACKAGES", ("torch-that-is-not-there",))
    report, is_healthy = format_doctor(plugins(CPU))
    assert is_healthy  # serving does not need it
    assert "without torch-that-is-not-there" in report
    assert 'pip install "twostroke[export]"' in report


def test_a_cache_that_can_be_made_is_writable(monkeypatch, tmp_path):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "deep" / "cache"))
    assert f"cache: {tmp_path / 'deep' / 'cache'} (writable)" in format_doctor(plugins(CPU))[0]
    assert list(tmp_path.iterdir()) == []  # the trial left nothing


@pytest.mark.parametrize("inside", [".", "deep/cache"])
def test_a_cache_below_a_file_cannot_be_written(monkeypatch, tmp_path, inside):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "file" / inside))
    report = format_doctor(plugins(CPU))[0]
    assert "NOT writable (Not a directory): set TWOSTROKE_CACHE" in report


def test_the_report_of_this_machine_holds_together():
    report, is_healthy = format_doctor(load_plugins())
    assert is_healthy
    for title in ("versions", "onnxruntime", "backends", "plugins", "folders"):
        assert f"\n\n{title}\n" in f"\n\n{report}"
