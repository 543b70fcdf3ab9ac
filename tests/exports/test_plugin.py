"""The exporter as a plugin: found, light, and clear about what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution

import pytest

from twostroke.backends import API_VERSION
from twostroke.backends.discovery import load_plugins
from twostroke.backends.hookspecs import ExportOptions
from twostroke.errors import ExportError, InstallError
from twostroke_export import plugin
from twostroke_export.precision import PRECISIONS


def test_is_found_through_its_entry_point():
    spec = load_plugins().exporters["transformers"]
    assert spec.api_version == API_VERSION
    assert set(spec.precisions) == set(PRECISIONS)


def test_is_light_to_import():
    heavy = "{'torch', 'transformers', 'onnx', 'onnxscript', 'optimum', 'onnxruntime'}"
    program = f"import sys, twostroke_export.plugin; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["torch", "gguf", "onnx_ir"])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # what is not installed looks like this
    with pytest.raises(InstallError, match=rf"'{package}'.*twostroke\[export\]"):
        plugin.export(ExportOptions("anything", tmp_path / "out"), lambda _: None)
    assert not (tmp_path / "out").exists()


def test_reports_begin_before_the_heavy_imports(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "twostroke_export.pipeline", None)
    reports = []
    with pytest.raises(ImportError):
        plugin.export(ExportOptions(str(tiny_llama), tmp_path / "out"), reports.append)
    assert [report.fraction for report in reports] == [0.0, 0.0]


def test_options_that_do_not_go_together_are_refused_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "twostroke_export.pipeline", None)
    options = ExportOptions("nothing", tmp_path / "out", "fp32", activations="bf16")
    with pytest.raises(ExportError, match="share one KV cache"):
        plugin.export(options, lambda _: None)
    program = "import sys, twostroke_export.recipe; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "False", ran.stderr


def test_its_packages_are_those_of_the_extra():
    lines = [
        line
        for line in distribution("twostroke").requires or []
        if re.search(r"extra == .export\b", line)
    ]
    wanted = {re.split(r"[<>=!~; ]", line)[0].replace("-", "_") for line in lines}
    # transformers brings safetensors; peft is only asked for where there is an adapter.
    assert set(plugin._NEEDED) - {"safetensors"} == wanted - {"peft"}
