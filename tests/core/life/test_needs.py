from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from twostroke.backends import Device
from twostroke.backends.capabilities import FreeMemory
from twostroke.backends.discovery import load_plugins
from twostroke.bundle import open_bundle
from twostroke.errors import OutOfMemoryError
from twostroke.life.memory import plan_memory
from twostroke.life.needs import Needs, engine_needs
from twostroke.life.resident import process_bytes, read_resident_bytes
from twostroke.testing import make_echo_bundle
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.types import Stroke

GPU = SimpleNamespace(device=Device(0, "G", "gpu", memory_bytes=10**9))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return open_bundle(make_onnx_bundle(tmp_path_factory.mktemp("needs") / "b", TinyModel()))


def cpu(**options):
    spec = load_plugins().backends["cpu"]
    return spec.open(spec.probe().devices[0], options)


def needs(bundle, prefill, decode, **changes) -> Needs:
    graphs = {stroke: bundle.graph(stroke) for stroke in Stroke}
    backends = {Stroke.PREFILL: prefill, Stroke.DECODE: decode}
    given = {"context_tokens": 100, "chunk_tokens": 64, "num_rows": 2}
    return engine_needs(bundle, graphs, backends, **(given | changes))


def test_the_cpu_keeps_packed_weights_once_unless_told_otherwise(bundle):
    shared = cpu()
    one = needs(bundle, shared, shared)
    assert one.decode_weights_bytes < 100 < one.prefill_weights_bytes
    own = cpu(share_weights=False)
    two = needs(bundle, own, own)
    assert two.prefill_weights_bytes == one.prefill_weights_bytes
    assert two.decode_weights_bytes > one.prefill_weights_bytes / 2


def test_a_device_without_packing_loads_a_copy_for_each_graph(bundle):
    found = needs(bundle, GPU, GPU)
    on_disk = (bundle.root / "weights.bin").stat().st_size
    assert found.prefill_weights_bytes == pytest.approx(on_disk, rel=0.05)
    assert found.decode_weights_bytes == pytest.approx(on_disk, rel=0.05)
    assert found.free_bytes == 10**9


def test_a_device_whose_sessions_share_counts_weights_once_and_says_what_is_free(bundle):
    """Free is what is free now, not all that the device has."""
    told = FreeMemory(600, "a meter")
    sharing = SimpleNamespace(device=GPU.device, shares_weights=True, free_memory=lambda: told)
    found = needs(bundle, sharing, sharing)
    on_disk = (bundle.root / "weights.bin").stat().st_size
    assert found.prefill_weights_bytes == pytest.approx(on_disk, rel=0.05)
    assert found.decode_weights_bytes < 0.05 * on_disk
    assert (found.free_bytes, found.free_source) == (600, "a meter")
    with pytest.raises(OutOfMemoryError, match=r"of free memory \(a meter\)"):
        plan_memory(
            bytes_per_token=100,
            context_tokens=100,
            max_rows=1,
            budget_bytes=None,
            touches_lazily=False,
            needs=found,
        )


def test_only_what_lies_where_decode_runs_counts(bundle):
    assert needs(bundle, GPU, cpu()).prefill_weights_bytes == 0
    assert needs(bundle, cpu(), GPU).prefill_weights_bytes == 0
    assert needs(bundle, GPU, cpu()).decode_weights_bytes > 0


def test_the_workspace_grows_with_chunk_context_and_rows(bundle):
    backend = cpu()
    base = needs(bundle, backend, backend).workspace_bytes
    scores = 4 * 64 * 4  # heads, chunk, bytes: for each token of context
    longer = needs(bundle, backend, backend, context_tokens=200).workspace_bytes
    assert longer - base == 100 * scores
    assert needs(bundle, backend, backend, chunk_tokens=32).workspace_bytes < base
    assert needs(bundle, backend, backend, num_rows=3).workspace_bytes > base
    assert needs(bundle, GPU, GPU).workspace_bytes == base - 100 * scores


def test_graphs_of_a_plugins_own_format_count_as_on_disk(tmp_path):
    bundle = open_bundle(make_echo_bundle(tmp_path / "echo"))
    backend = cpu()
    on_disk = sum(bundle.graph(stroke).stat().st_size for stroke in Stroke)
    assert needs(bundle, backend, backend).weights_bytes == on_disk


@pytest.mark.alone
@pytest.mark.skipif(not psutil.LINUX, reason="told by Linux only")
def test_resident_is_what_the_system_says():
    ours, theirs = read_resident_bytes(), psutil.Process().memory_full_info()
    assert ours == pytest.approx(theirs.pss, rel=0.1)
    assert process_bytes() == process_bytes() <= theirs.rss * 1.1


def test_elsewhere_it_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setattr("twostroke.life.resident._ROLLUP", tmp_path / "missing")
    assert read_resident_bytes() is None
