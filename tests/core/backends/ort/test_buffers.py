from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from twostroke.backends.ort import HostBuffer, allocate_host
from twostroke.errors import BackendError, OutOfMemoryError

LARGE = (4, 2, 4096, 64)  # 8 MiB of float32


@pytest.mark.parametrize("shape", [(), (3,), (2, 5), LARGE])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32"])
def test_allocated_memory_is_zeros_of_shape_and_dtype(shape, dtype):
    buffer = allocate_host(shape, dtype)
    assert (buffer.shape, buffer.dtype) == (shape, dtype)
    assert not buffer.read().any()


def test_what_is_written_is_read_and_rows_share_memory():
    buffer = allocate_host(LARGE, "float32")
    rows = buffer.rows(1, 2)
    assert rows.shape == (2, *LARGE[1:])
    rows.write(np.full(rows.shape, 7, np.float32))
    assert [float(buffer.read()[row].mean()) for row in range(4)] == [0, 7, 7, 0]
    rows.rows(1, 1).write(np.full((1, *LARGE[1:]), 3, np.float32))
    assert [float(buffer.read()[row].mean()) for row in range(4)] == [0, 7, 3, 0]


def test_a_view_in_another_shape_shares_memory():
    buffer = allocate_host((2, 6), "float32")
    view = buffer.reshaped((1, 2, 4))
    view.write(np.arange(8, dtype=np.float32).reshape(1, 2, 4))
    assert buffer.read().reshape(-1).tolist() == [*range(8), 0, 0, 0, 0]
    assert view.ort_value().data_ptr() == buffer.array.ctypes.data
    assert buffer.reshaped((1, 0, 4)).read().size == 0
    with pytest.raises(BackendError, match=r"\[2, 6\] cannot be seen as \[13\]"):
        buffer.reshaped((13,))


def test_a_view_keeps_the_memory_alive():
    rows = allocate_host(LARGE, "float32").rows(3, 1)
    gc.collect()
    rows.write(np.ones(rows.shape, np.float32))
    assert rows.ort_value().numpy().sum() == rows.read().size


def test_the_ort_value_is_the_same_memory():
    buffer = allocate_host((2, 3), "float32")
    value = buffer.ort_value()
    buffer.write(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert value.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert value.data_ptr() == buffer.array.ctypes.data
    assert buffer.ort_value() is value


@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 3), np.float64), np.zeros((3, 2), np.float32), np.zeros(3, np.float32)],
)
def test_values_of_another_shape_or_dtype_are_refused(values):
    with pytest.raises(BackendError, match=r"float32\[2, 3\] cannot take"):
        allocate_host((2, 3), "float32").write(values)


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, 5), (4, 1), (2, -1)])
def test_rows_outside_are_refused(start, count):
    with pytest.raises(BackendError, match="outside a buffer of 4 rows"):
        allocate_host((4, 2), "float32").rows(start, count)


def test_memory_that_cannot_be_had_is_told_in_bytes():
    with pytest.raises(OutOfMemoryError, match=r"4611686018427387904 bytes.*kv.budget"):
        allocate_host((1 << 60,), "float32")


def test_a_dtype_that_graphs_are_not_bound_with_is_refused():
    with pytest.raises(BackendError, match="bfloat16"):
        allocate_host((2,), "bfloat16")


def test_arrays_with_gaps_are_refused():
    with pytest.raises(BackendError, match="C-contiguous"):
        HostBuffer(np.zeros((4, 4))[:, :2])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_untouched_pages_cost_nothing_and_touched_ones_cost_themselves():
    def resident_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0])

    before = resident_kib()
    buffer = allocate_host((64, 1 << 20), "float32")  # 256 MiB
    for row in range(64):
        buffer.read()[row, 0] = 1  # one page in each 4 MiB
    grown = resident_kib() - before
    assert grown < 16 * 1024  # huge pages would make it 128 MiB
