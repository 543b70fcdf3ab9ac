"""Rows move between caches of either layout, on host memory and on a device's."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.backends import HOST_MEMORY
from twostroke.bundle.contract import past_names
from twostroke.bundle.manifest import GraphFact, KVLayer, Quantisation
from twostroke.engine.handover import hand_over, hand_over_way
from twostroke.engine.kv_buffers import KVBuffers
from twostroke.engine.kv_concatenated import ConcatenatedKV
from twostroke.engine.kv_extent import Extent
from twostroke.engine.open_graph import LogitRows, OpenGraph
from twostroke.errors import EngineError
from twostroke.testing.echo import EchoBackend, EchoBuffer, parse_options, probe
from twostroke.testing.engines import echo_request
from twostroke.types import SamplingParams, Stroke

from .conftest import PLACEMENTS

LAYERS = (KVLayer(num_kv_heads=2, head_dim=3), KVLayer(num_kv_heads=1, head_dim=4))
NAMES = (*past_names(0), *past_names(1))
CAPACITY = 6


class DeviceBuffer(EchoBuffer):
    """Gives copies away, as a device must, and counts what is written."""

    num_writes = 0

    def read(self):
        return self.values.copy()

    def write(self, values):
        super().write(values)
        self.num_writes += 1


class DeviceBackend(EchoBackend):
    def allocate(self, shape, dtype, *, on_host=False):
        return DeviceBuffer(np.zeros(shape, dtype), has_row_views=False)


def open_backend(kind):
    options = {"device": {"row_views": False}, "host": {}, "host, no views": {"row_views": False}}
    backend = DeviceBackend if kind == "device" else EchoBackend
    return backend(probe().devices[0], parse_options(options[kind]))


def open_store(layout, kind, *, num_rows=2):
    store = {"in place": KVBuffers, "concatenated": ConcatenatedKV}[layout]
    return store(open_backend(kind), LAYERS, "float32", Extent(num_rows, CAPACITY))


def contents(seed, num_tokens):
    random = np.random.default_rng(seed)
    shapes = [(1, layer.num_kv_heads, num_tokens, layer.head_dim) for layer in LAYERS]
    return {
        name: random.random(shapes[number // 2], dtype=np.float32)
        for number, name in enumerate(NAMES)
    }


def assert_holds(store, row, expected):
    num_tokens = next(iter(expected.values())).shape[2]
    found = dict(store.read_row(row, num_tokens))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name


@pytest.mark.parametrize("source_kind", ["host", "device"])
@pytest.mark.parametrize("target_kind", ["host", "host, no views", "device"])
@pytest.mark.parametrize("source_layout", ["in place", "concatenated"])
@pytest.mark.parametrize("target_layout", ["in place", "concatenated"])
def test_a_row_arrives_and_comes_back(source_layout, source_kind, target_layout, target_kind):
    source = open_store(source_layout, source_kind)
    target = open_store(target_layout, target_kind)
    row, other = contents(1, CAPACITY), contents(2, 2)
    source.fill_row(1, iter(row.items()))
    target.fill_row(0, iter(other.items()))
    hand_over(source, target, 1, CAPACITY)  # to the very last position
    assert_holds(target, 1, row)
    assert_holds(target, 0, other)
    back = contents(3, 4)
    target.fill_row(1, iter(back.items()))
    hand_over(target, source, 1, 4)
    assert_holds(source, 1, back)


def timings_of(echo, sink):
    limit = SamplingParams(temperature=0.0, max_tokens=2)
    echo.engine.submit(echo_request("a", "abcdefg", limit), sink, arrived_at=0.0)
    while not sink.ends:
        echo.engine.run_step()
    return sink.ends[0].timings


@pytest.mark.parametrize("placement", ["two backends", "concatenating prefill"])
def test_a_request_tells_what_was_handed_over(make_engine, recorder, placement):
    echo = make_engine(started=False, **PLACEMENTS[placement])
    moved = timings_of(echo, recorder()).hand_over
    kv_bytes_per_token = 2 * 2 * 2 * 4  # layers, sides, head_dim, float32
    assert (moved.num_bytes, moved.way) == (7 * kv_bytes_per_token, echo.engine.hand_over_way)
    assert moved.busy_ms >= 0


def test_one_cache_hands_nothing_over(make_engine, recorder):
    echo = make_engine(started=False)
    assert timings_of(echo, recorder()).hand_over is None
    assert echo.engine.hand_over_way == "shared"


class InHostMemory(EchoBackend):
    memory_space = HOST_MEMORY


class OnDevice(EchoBackend):
    memory_space = "cuda:0"


def graph_on(backend, dialect="fused"):
    options = parse_options({"row_views": backend is not OnDevice})
    fact = GraphFact(
        stroke=Stroke.PREFILL,
        dialect=dialect,
        file="prefill.onnx",
        quantisation=Quantisation(precision="fp32"),
    )
    opened = backend(probe().devices[0], options)
    return OpenGraph("graph", opened, None, fact, (), (), LogitRows.CHOSEN)


@pytest.mark.parametrize(
    ("prefill", "decode", "way"),
    [
        (graph_on(InHostMemory), graph_on(InHostMemory), "shared"),
        (graph_on(InHostMemory, "standard"), graph_on(InHostMemory), "one copy in host memory"),
        (graph_on(OnDevice), graph_on(InHostMemory), "one copy between host and device"),
        (graph_on(OnDevice), graph_on(OnDevice), "shared"),
        (graph_on(EchoBackend), graph_on(EchoBackend), "a copy between two caches"),
        (graph_on(EchoBackend), graph_on(InHostMemory), "one copy between host and device"),
    ],
)
def test_the_cheapest_way_is_taken(prefill, decode, way):
    assert hand_over_way(prefill, decode) == way


def test_only_the_tokens_are_copied_between_host_memories():
    target = open_store("in place", "host")
    for buffer in target.span(0, 2).values():
        buffer.write(np.full(buffer.shape, -1, np.float32))
    target.fill_row(1, iter(contents(4, 4).items()))
    for buffer in target.span(0, 2).values():
        assert (buffer.read()[0] == -1).all()
        assert (buffer.read()[1, :, 4:] == -1).all()


def test_a_device_gets_one_write_for_each_layer_and_side():
    target = open_store("in place", "device")
    target.fill_row(0, iter(contents(5, 4).items()))
    assert [buffer.num_writes for buffer in target.span(0, 1).values()] == [1] * len(NAMES)


@pytest.mark.parametrize("kind", ["host", "host, no views", "device"])
def test_a_row_that_concatenates_grows_and_is_cut(kind):
    store = open_store("concatenated", kind)
    long, short = contents(6, 5), contents(7, 2)
    store.fill_row(0, iter(long.items()))
    store.fill_row(1, iter(short.items()))
    past = store.past(0, 3)
    assert {name: buffer.shape[2] for name, buffer in past.items()} == dict.fromkeys(NAMES, 3)
    assert_holds(store, 0, {name: values[:, :, :3] for name, values in long.items()})
    assert_holds(store, 1, short)
    with pytest.raises(EngineError, match="Row 0 of the KV cache holds 3 tokens, not 4"):
        store.past(0, 4)
    assert [buffer.shape[2] for buffer in store.past(0, 0).values()] == [0] * len(NAMES)


def test_what_was_written_and_not_kept_changes_no_row():
    store = open_store("concatenated", "host")
    row = contents(8, 3)
    store.fill_row(0, iter(row.items()))
    for buffer in store.present(4).values():
        buffer.write(np.full(buffer.shape, 9, np.float32))
    assert_holds(store, 0, row)


def test_rows_take_turns_with_one_spare_set_of_memory():
    store = open_store("concatenated", "host")
    memory = {id(buffer.read().base) for block in store._blocks for buffer in block.values()}
    for turn in range(5):
        store.fill_row(turn % 2, iter(contents(turn, turn + 1).items()))
    assert len(store._blocks) == 3
    assert memory == {id(b.read().base) for block in store._blocks for b in block.values()}
    assert_holds(store, 0, contents(4, 5))
    assert_holds(store, 1, contents(3, 4))
