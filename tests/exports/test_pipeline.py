"""The whole export: what is refused and when, what is reported, and that it is all or nothing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from twostroke.backends.hookspecs import ExportOptions, Progress
from twostroke.bundle import open_bundle
from twostroke.errors import BundleError, ExportError
from twostroke_export import pipeline, prepare, write
from twostroke_export.pipeline import export, export_all


def never(*_: object, **__: object) -> None:
    raise AssertionError("the heavy work began before everything cheap was checked")


def test_makes_every_precision_from_one_trace(tiny_llama, tmp_path, monkeypatch):
    traced = []
    original = prepare.trace
    monkeypatch.setattr(
        prepare, "trace", lambda *given: traced.append(given[2]) or original(*given)
    )
    outs = {name: tmp_path / name for name in ("int4", "fp16", "int8", "fp32")}
    stages: list[Progress] = []
    made = export_all(str(tiny_llama), outs, context_tokens=128, on_progress=stages.append)
    assert made == outs
    # fp16 has weights and caches of its own kind, so it is traced again.
    assert traced == ["prefill", "decode", "prefill", "decode"]
    bundles = {name: open_bundle(path) for name, path in outs.items()}
    sizes = [bundles[name].num_bytes for name in ("fp32", "fp16", "int8", "int4")]
    assert sizes == sorted(sizes, reverse=True)
    for name, bundle in bundles.items():
        manifest = bundle.manifest
        assert manifest.quantisation.precision == name
        assert manifest.kv_dtype == ("float16" if name == "fp16" else "float32")
        assert manifest.context_tokens == 128
        assert manifest.verification.num_text_tokens == 128
        assert len(manifest.self_check.greedy_ids) == len(manifest.self_check.greedy_margins) == 16
    assert bundles["fp32"].manifest.verification.num_argmax_equal == 17
    fractions = [stage.fraction for stage in stages]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.0
    assert fractions[-1] == 1.0


def test_tells_its_versions_and_its_source(tiny_llama, tmp_path):
    options = ExportOptions(str(tiny_llama), tmp_path / "out", "fp32", name="mine")
    out = export(options, lambda _: None)
    manifest = open_bundle(out).manifest
    assert manifest.name == "mine"
    assert {"torch", "transformers", "optimum", "twostroke"} <= set(manifest.exporter)
    assert manifest.source["kind"] == "folder"
    assert len(manifest.source["sha256"]) == 64
    assert str(tiny_llama) not in manifest.model_dump_json()
    assert manifest.architecture.model_dump() == {
        "model_type": "llama",
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "vocab_size": 320,
        "num_parameters": 94528,
    }
    assert [layer.model_dump() for layer in manifest.kv_layers] == [
        {"num_kv_heads": 2, "head_dim": 16}
    ] * 2


def test_prints_nothing(tiny_llama, tmp_path):
    """Seen from outside: inside, pytest listens to every logger itself."""
    program = (
        "import sys; from pathlib import Path; from twostroke_export.pipeline import export_all; "
        "export_all(sys.argv[1], {'int8': Path(sys.argv[2])})"
    )
    command = [sys.executable, "-c", program, str(tiny_llama), str(tmp_path / "out")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_an_existing_folder_is_refused_before_any_work(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "load", never)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(BundleError, match="out exists already"):
        export_all(str(tiny_llama), {"fp32": out})


def test_an_unknown_precision_is_refused_with_the_known_ones(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "load", never)
    with pytest.raises(ExportError, match="'int3' is unknown; choose one of fp32, fp16, bf16"):
        export_all(str(tiny_llama), {"int3": tmp_path / "out"})
    assert not list(tmp_path.iterdir())


def test_a_longer_context_than_the_model_has_is_refused_with_both_numbers(
    tiny_llama, tmp_path, monkeypatch
):
    monkeypatch.setattr(prepare, "load", never)
    with pytest.raises(ExportError, match=r"300 tokens was asked for.*limited to 256"):
        export_all(str(tiny_llama), {"fp32": tmp_path / "out"}, context_tokens=300)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError])
def test_a_failure_leaves_nothing(tiny_llama, tmp_path, monkeypatch, fault):
    def fail(*_: object, **__: object) -> None:
        assert list(tmp_path.iterdir())  # something was being written
        raise fault

    monkeypatch.setattr(pipeline, "measure", fail)
    with pytest.raises(fault):
        export_all(str(tiny_llama), {"fp32": tmp_path / "out"})
    assert not list(tmp_path.iterdir())


def test_graphs_that_compute_something_else_are_not_sealed(tiny_llama, tmp_path, monkeypatch):
    original = write.lower

    def corrupt(graph, lowering, weights):
        original(graph, lowering, weights)
        for name, value in graph.initializers.items():
            if name.endswith("float32_64x64"):
                value.const_value = weights.add(np.flip(value.const_value.numpy()).copy())

    monkeypatch.setattr(write, "lower", corrupt)
    with pytest.raises(ExportError, match=r"fp32 export of tiny-llama does not agree"):
        export_all(str(tiny_llama), {"fp32": tmp_path / "out"})
    assert not list(tmp_path.iterdir())
