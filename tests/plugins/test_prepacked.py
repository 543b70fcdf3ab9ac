from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from twostroke.backends import Device
from twostroke.errors import BundleError
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.types import Stroke
from twostroke_backends import prepacked
from twostroke_backends.cpu import CpuBackend


@pytest.fixture(autouse=True)
def nothing_checked_yet(monkeypatch):
    monkeypatch.setattr(prepacked, "_checked", set())


def open_both(bundle: Path) -> list[object]:
    backend = CpuBackend(Device(0, "", "cpu"), {})
    return [backend.open_session(bundle / f"{stroke}.onnx", stroke) for stroke in Stroke]


def entries(cache: Path) -> list[Path]:
    folder = cache / "prepacked"
    return sorted(path for path in folder.glob("*") if path.is_dir())


def only_entry(cache: Path) -> Path:
    (entry,) = entries(cache)
    return entry


def logits(bundle: Path, share_weights: bool) -> np.ndarray:
    backend = CpuBackend(Device(0, "", "cpu"), {"share_weights": share_weights})
    session = backend.open_session(bundle / "prefill.onnx", Stroke.PREFILL)
    sizes = {"batch": 1, "sequence": 3, "k": 1, "capacity": 8}
    inputs, outputs = {}, {}
    for name, spec in session.inputs.items():
        inputs[name] = backend.allocate(tuple(sizes.get(d, d) for d in spec.shape), spec.dtype)
    for name, spec in session.outputs.items():
        past = name.replace("present", "past_key_values")
        shape = tuple(sizes.get(d, d) for d in spec.shape)
        outputs[name] = inputs.get(past) or backend.allocate(shape, spec.dtype)
    inputs["input_ids"].write(np.array([[5, 6, 7]]))
    inputs["seqlens_k"].write(np.array([2], np.int32))
    inputs["total_sequence_length"].write(np.array(3, np.int32))
    inputs["logit_index"].write(np.array([[2]]))
    session.bind(inputs, outputs).run()
    return outputs["logits"].read().copy()


def test_both_graphs_share_one_file(bundle, cache):
    open_both(bundle)
    names = sorted(path.name for path in only_entry(cache).iterdir())
    assert names == ["decode.onnx", "facts.json", "prefill.onnx", "weights.bin"]
    assert sorted(path.name for path in bundle.iterdir() if "onnx" in path.name) == [
        "decode.onnx",
        "prefill.onnx",
    ]  # nothing was written into the bundle


def test_each_dialect_has_an_entry_of_its_own(tmp_path, cache, caplog):
    bundle = make_onnx_bundle(tmp_path / "both", TinyModel(dialects=("fused", "standard")))
    backend = CpuBackend(Device(0, "", "cpu"), {})
    for _ in range(2):
        for stroke in Stroke:
            backend.open_session(bundle / f"{stroke}.onnx", stroke)
            backend.open_session(bundle / f"{stroke}.standard.onnx", stroke)
    assert len(entries(cache)) == 2
    assert caplog.records == []


def test_graphs_with_different_weights_share_the_equal_ones(uneven_bundle, bundle, cache):
    open_both(bundle)
    even = (only_entry(cache) / "weights.bin").stat().st_size
    shutil.rmtree(cache)
    open_both(uneven_bundle)
    uneven = (only_entry(cache) / "weights.bin").stat().st_size
    assert even < uneven < even * 1.1


@pytest.mark.parametrize("which", ["bundle", "uneven_bundle"])
def test_packed_graphs_answer_as_the_bundles_own(which, request):
    folder = request.getfixturevalue(which)
    assert np.array_equal(logits(folder, share_weights=True), logits(folder, share_weights=False))


def test_it_is_built_once(bundle, cache, monkeypatch):
    open_both(bundle)
    monkeypatch.setattr(prepacked, "_save_packed", lambda *_: pytest.fail("built again"))
    monkeypatch.setattr(prepacked, "_checked", set())
    open_both(bundle)


def test_it_can_be_switched_off(bundle, cache):
    CpuBackend(Device(0, "", "cpu"), {"share_weights": False}).open_session(
        bundle / "decode.onnx", Stroke.DECODE
    )
    assert entries(cache) == []


def flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 0xFF
    path.write_bytes(held)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, truncate, remove])
@pytest.mark.parametrize("name", ["weights.bin", "decode.onnx", "prefill.onnx", "facts.json"])
def test_a_damaged_entry_is_built_again(bundle, cache, name, damage):
    open_both(bundle)
    entry = only_entry(cache)
    sound = {path.name: path.read_bytes() for path in entry.iterdir()}
    damage(entry / name)
    prepacked._checked.clear()
    open_both(bundle)
    again = {path.name: path.read_bytes() for path in only_entry(cache).iterdir()}
    assert again.keys() == sound.keys()
    assert again["weights.bin"] == sound["weights.bin"]


def test_an_unfinished_build_is_no_entry(bundle, cache, monkeypatch, caplog):
    save, seen = prepacked._save_packed, []

    def full_disk(graph: Path, *rest: object) -> None:
        seen.append(graph.name)
        if len(seen) == 2:
            raise OSError(28, "No space left on device")
        save(graph, *rest)

    monkeypatch.setattr(prepacked, "_save_packed", full_disk)
    with caplog.at_level(logging.WARNING):
        (prefill, _) = open_both(bundle)
    assert prefill.placement.nodes  # the start went on
    assert "No space left" in caplog.text
    assert "both sessions keep their own copy" in caplog.text
    assert len(entries(cache)) <= 1  # at most the second try; no leftovers of the first
    assert not [entry for entry in entries(cache) if entry.name.endswith(".part")]


def test_a_cache_that_cannot_be_written_is_a_warning(bundle, tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setenv("TWOSTROKE_CACHE", str(blocked))
    with caplog.at_level(logging.WARNING):
        open_both(bundle)
    assert "set TWOSTROKE_CACHE" in caplog.text


def test_of_a_graph_that_cannot_be_loaded_only_that_is_told(bundle, cache, tmp_path, caplog):
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    (copy / "prefill.onnx").write_bytes(b"this is no graph")
    with caplog.at_level(logging.WARNING), pytest.raises(BundleError, match="prefill"):
        open_both(copy)
    assert not caplog.records
    assert not entries(cache)


def test_an_entry_that_cannot_be_loaded_gives_way_to_the_bundle(bundle, cache, caplog):
    open_both(bundle)
    entry = only_entry(cache)
    (entry / "weights.bin").unlink()  # behind the back of this process, which has checked it
    facts = json.loads((entry / "facts.json").read_text())
    del facts["files"]["weights.bin"]
    (entry / "facts.json").write_text(json.dumps(facts))
    with caplog.at_level(logging.WARNING):
        (session, _) = open_both(bundle)
    assert session.placement.nodes
    assert "own graph is loaded instead" in caplog.text
    assert only_entry(cache) == entry  # the second graph built it again


def test_an_entry_of_the_same_bundle_exported_again_is_replaced(bundle, cache, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    open_both(bundle)
    open_both(copy)
    assert len(entries(cache)) == 1  # the same bytes, wherever they lie
    manifest = json.loads((copy / "bundle.json").read_text())
    manifest["name"] = "with a fact more"
    (copy / "bundle.json").write_text(json.dumps(manifest))
    open_both(copy)
    assert len(entries(cache)) == 1  # what is packed is the same
    manifest["files"]["tokenizer.json"]["sha256"] = "1" * 64  # exported again
    (copy / "bundle.json").write_text(json.dumps(manifest))
    open_both(copy)
    assert len(entries(cache)) == 2
    manifest["files"]["tokenizer.json"]["sha256"] = "2" * 64
    (copy / "bundle.json").write_text(json.dumps(manifest))
    open_both(copy)
    assert len(entries(cache)) == 2


@pytest.mark.parametrize("changed", ["__version__", "cpu_kind", "optimization"])
def test_another_runtime_processor_or_optimization_gets_its_own(bundle, cache, changed, request):
    open_both(bundle)
    first = only_entry(cache)
    patch = request.getfixturevalue("monkeypatch")
    options = {}
    if changed == "__version__":
        import onnxruntime

        patch.setattr(onnxruntime, "__version__", "99")
    elif changed == "cpu_kind":
        patch.setattr("twostroke_backends.cpu_facts.cpu_kind", lambda: "another")
    else:
        options = {"optimization": "basic"}
    CpuBackend(Device(0, "", "cpu"), options).open_session(bundle / "decode.onnx", Stroke.DECODE)
    assert len(entries(cache)) == 2
    assert first in entries(cache)


def test_a_graph_outside_a_bundle_is_loaded_plainly(bundle, tmp_path, cache):
    for name in ("decode.onnx", "weights.bin"):
        shutil.copy(bundle / name, tmp_path)
    session = CpuBackend(Device(0, "", "cpu"), {}).open_session(
        tmp_path / "decode.onnx", Stroke.DECODE
    )
    assert session.placement.nodes
    assert entries(cache) == []


_OPEN = """
import sys
from pathlib import Path
from twostroke.backends import Device
from twostroke.errors import BundleError
from twostroke.types import Stroke
from twostroke_backends.cpu import CpuBackend

sys.stdin.readline()  # all of them start at once
backend = CpuBackend(Device(0, "", "cpu"), {})
for stroke in Stroke:
    backend.open_session(Path(sys.argv[1]) / f"{stroke}.onnx", stroke)
print("opened")
"""


def test_processes_that_start_together_share_one_entry(bundle, cache):
    """One builds, the others wait and take its entry."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _OPEN, str(bundle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        said, _ = process.communicate(timeout=120)
        assert said.strip() == "opened"
    assert prepacked._is_whole(only_entry(cache))


def test_what_a_killed_build_left_goes_with_a_later_one(bundle, cache):
    folder = cache / "prepacked"
    old, fresh = folder / ".old.part", folder / ".fresh.part"
    for leftover in (old, fresh):
        leftover.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))
    open_both(bundle)
    assert not old.exists()
    assert fresh.exists()  # another process may be at work in it
