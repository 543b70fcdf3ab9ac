"""What sessions keep beside weights and cache, in the plan."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from twostroke.backends import Device
from twostroke.backends.capabilities import SessionMemory
from twostroke.bundle import open_bundle
from twostroke.bundle.graph_weights import read_weights
from twostroke.life.memory import plan_memory
from twostroke.life.needs import Needs
from twostroke.life.session_memory import kept_bytes
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.types import Stroke

PLAIN = SimpleNamespace(device=Device(0, "C", "cpu"))


def keeping(kind: str = "cpu", **kept) -> SimpleNamespace:
    return SimpleNamespace(device=Device(0, "D", kind), session_memory=SessionMemory(**kept))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    bundle = open_bundle(make_onnx_bundle(tmp_path_factory.mktemp("kept") / "b", TinyModel()))
    return {stroke: bundle.graph(stroke) for stroke in Stroke}


def test_code_counts_once_a_backend_and_mapped_files_once_in_all(graphs):
    read = {
        tensor.place: tensor.num_bytes for path in graphs.values() for tensor in read_weights(path)
    }
    one, other = (keeping(code_bytes=1000, maps_weights=True) for _ in range(2))
    mapped = sum(read.values())
    assert mapped > 0
    assert kept_bytes(graphs, {Stroke.PREFILL: one, Stroke.DECODE: one}) == 1000 + mapped
    assert kept_bytes(graphs, {Stroke.PREFILL: one, Stroke.DECODE: other}) == 2000 + mapped


def test_who_says_nothing_keeps_nothing_and_devices_take_none_of_the_hosts_memory(graphs):
    gpu = keeping("gpu", code_bytes=1000, maps_weights=True)
    assert kept_bytes(graphs, dict.fromkeys(Stroke, PLAIN)) == 0
    assert kept_bytes(graphs, dict.fromkeys(Stroke, gpu)) == 0


def test_copies_of_the_longest_row_are_planned_whole_and_counted_as_far_as_it_came():
    needs = Needs(60, 20, 20, free_bytes=1000, kept_bytes=64)
    made = plan_memory(
        bytes_per_token=10,
        context_tokens=15,
        max_rows=2,
        budget_bytes=320,
        touches_lazily=True,
        needs=needs,
    )
    assert (needs.num_bytes, made.total_bytes) == (164, 164 + 320)
    now = [made.bytes_now(0, 0, tokens) for tokens in (0, 4, 16, 99)]
    assert now == [100, 116, 164, 164]
