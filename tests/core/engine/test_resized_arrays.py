"""Arrays of a KV cache in a device's memory, which change their size."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from twostroke.bundle.contract import past_names
from twostroke.bundle.manifest import KVLayer
from twostroke.engine.kv_buffers import KVBuffers
from twostroke.engine.kv_concatenated import ConcatenatedKV
from twostroke.engine.kv_extent import Extent
from twostroke.engine.kv_stores import KVStores
from twostroke.errors import OutOfMemoryError
from twostroke.testing.echo import EchoBackend, parse_options, probe

LAYERS = (KVLayer(num_kv_heads=2, head_dim=4), KVLayer(num_kv_heads=1, head_dim=8))
NAMES = [name for number in range(len(LAYERS)) for name in past_names(number)]
ARRAY_BYTES = 8 * 4  # a token of a layer and side takes
TOKEN_BYTES = len(NAMES) * ARRAY_BYTES


def open_device(**options):
    return EchoBackend(probe().devices[0], parse_options({"lazy": False, **options}))


def contents(seed, num_tokens):
    random = np.random.default_rng(seed)
    return {
        name: random.random((1, layer.num_kv_heads, num_tokens, layer.head_dim), np.float32)
        for number, layer in enumerate(LAYERS)
        for name in past_names(number)
    }


def assert_holds(store, row, expected):
    num_tokens = next(iter(expected.values())).shape[2]
    for name, found in store.read_row(row, num_tokens):
        assert np.array_equal(found, expected[name]), name


STORES = {
    "in place": (KVBuffers, True),
    "in place, no views": (KVBuffers, False),
    "concatenating": (ConcatenatedKV, True),
}


@pytest.mark.parametrize(("kind", "row_views"), STORES.values(), ids=STORES)
class TestArrays:
    def test_rows_keep_their_tokens_however_the_arrays_change(self, kind, row_views):
        device = open_device(row_views=row_views)
        store = kind(device, LAYERS, "float32", Extent(2, 8))
        rows = contents(1, 7), contents(2, 3)
        for row, tokens in enumerate(rows):
            store.fill_row(row, iter(tokens.items()))
        for extent in (Extent(2, 32), Extent(4, 32), Extent(4, 8), Extent(2, 16), Extent(2, 8)):
            store.resize(extent, [7, 3, 0, 0])
            assert store.extent == extent
            num_rows = extent.num_rows + (kind is ConcatenatedKV)  # and a spare one
            assert device.memory.taken_bytes == num_rows * extent.row_tokens * TOKEN_BYTES
            for row, tokens in enumerate(rows):
                assert_holds(store, row, tokens)
        store.resize(Extent(1, 8), [7, 0])
        assert_holds(store, 0, rows[0])
        assert store.num_readable(1) == 0

    def test_one_array_more_is_taken_at_most(self, kind, row_views):
        device = open_device(row_views=row_views)
        store = kind(device, LAYERS, "float32", Extent(2, 8))
        store.fill_row(1, iter(contents(1, 5).items()))
        num_rows = 3 if kind is ConcatenatedKV else 2
        rows_an_array = 2 if kind is KVBuffers and row_views else 1
        for row_tokens in (16, 8):
            device.memory.peak_bytes = 0
            store.resize(Extent(2, row_tokens), [0, 5])
            whole, array = num_rows * 16 * TOKEN_BYTES, rows_an_array * 8 * ARRAY_BYTES
            assert device.memory.peak_bytes <= whole + array

    @pytest.mark.parametrize("target", [Extent(4, 8), Extent(2, 16), Extent(1, 8)])
    def test_a_refusal_at_any_moment_changes_nothing(self, kind, row_views, target, monkeypatch):
        device = open_device(row_views=row_views)
        allocate = device.memory.allocate
        for refused in count():
            store = kind(device, LAYERS, "float32", Extent(2, 8))
            stores = KVStores(store, store, 4)
            rows = {0: contents(1, 7)} | ({1: contents(2, 3)} if target.num_rows > 1 else {})
            for row, tokens in rows.items():
                store.fill_row(row, iter(tokens.items()))
            taken, asked = device.memory.taken_bytes, count()

            def refuse(shape, dtype, refused=refused, asked=asked):
                if next(asked) == refused:
                    raise OutOfMemoryError("no more")
                return allocate(shape, dtype)

            monkeypatch.setattr(device.memory, "allocate", refuse)
            lengths = [7, 3 if 1 in rows else 0, 0, 0]
            is_refused = False
            try:
                stores.resize(target, lengths)
            except OutOfMemoryError:
                is_refused = True
            assert store.extent == (Extent(2, 8) if is_refused else target)
            assert device.memory.taken_bytes == taken or not is_refused
            monkeypatch.setattr(device.memory, "allocate", allocate)
            for row, tokens in rows.items():
                assert_holds(store, row, tokens)
            store.fill_row(0, iter(contents(3, 8).items()))
            assert_holds(store, 0, contents(3, 8))
            if store.extent == target:
                break
        else:
            raise AssertionError("it was never allowed")

    def test_a_device_that_takes_nothing_back_leaves_room_for_all_rows(
        self, kind, row_views, monkeypatch
    ):
        device = open_device(row_views=row_views)
        store = kind(device, LAYERS, "float32", Extent(2, 16))
        stores = KVStores(store, store, 2)
        row = contents(1, 7)
        store.fill_row(0, iter(row.items()))
        allocate, asked = device.memory.allocate, count()

        def refuse(shape, dtype):
            if next(asked) > 1:
                raise OutOfMemoryError("no more")
            return allocate(shape, dtype)

        monkeypatch.setattr(device.memory, "allocate", refuse)
        with pytest.raises(OutOfMemoryError):
            stores.resize(Extent(2, 8), [7, 0])
        assert stores.extent == Extent(2, 8)  # some arrays are as small as that
        assert_holds(store, 0, row)


def test_memory_of_the_host_is_never_resized():
    store = KVBuffers(open_device(lazy=True), LAYERS, "float32", Extent(2, 16))
    before = store.span(0, 2)
    store.resize(Extent(1, 8), [0, 0])
    assert store.extent == Extent(2, 16)
    assert all(store.span(0, 2)[name].values.base is before[name].values.base for name in NAMES)
