"""The spare block of a concatenating cache: what a long row touched leaves short ones again."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from twostroke.bundle.manifest import KVLayer
from twostroke.engine.kv_concatenated import _SLACK_TOKENS, ConcatenatedKV
from twostroke.engine.kv_extent import Extent

LAYERS = (KVLayer(num_kv_heads=1, head_dim=1),)
CAPACITY = 20_000


class Memory:
    """Counts the elements that have memory behind them."""

    def __init__(self) -> None:
        self.num_touched = 0


class Buffer:
    """Elements that were written; the values themselves do not matter here."""

    dtype = "float32"

    def __init__(self, shape: tuple[int, ...], memory: Memory) -> None:
        self.shape, self.memory = shape, memory

    def reshaped(self, shape: tuple[int, ...]) -> Buffer:
        return Buffer(shape, self.memory)

    def read(self) -> np.ndarray:
        values = np.zeros(self.shape, np.float32)
        values.flags.writeable = False
        return values

    def write(self, values: np.ndarray) -> None:
        assert values.shape == self.shape
        self.memory.num_touched = max(self.memory.num_touched, math.prod(self.shape))

    def rows(self, start: int, count: int) -> Buffer:
        raise AssertionError("it has no views of rows")

    def give_back(self, start: int) -> bool:
        self.memory.num_touched = min(self.memory.num_touched, start)
        return True


class Backend:
    name, has_row_views, touches_lazily = "counting", False, True

    def __init__(self) -> None:
        self.memories: list[Memory] = []

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        self.memories.append(Memory())
        return Buffer(shape, self.memories[-1])


def written(kv: ConcatenatedKV, row: int, num_tokens: int) -> None:
    """As a run does: into the spare, which becomes the row's."""
    for buffer in kv.present(num_tokens).values():
        buffer.write(np.zeros(buffer.shape, np.float32))
    kv.keep(row, num_tokens)


@pytest.mark.parametrize("seed", range(4))
def test_rows_keep_little_more_memory_than_they_hold(seed: int):
    backend, chance = Backend(), random.Random(seed)
    kv = ConcatenatedKV(backend, LAYERS, "float32", Extent(4, CAPACITY))
    lengths, longest = [0] * 4, 0
    for _ in range(200):
        row = chance.randrange(4)
        lengths[row] = chance.choice([5, 50, 500, CAPACITY])
        longest = max(longest, lengths[row])
        written(kv, row, lengths[row])
        touched = sum(memory.num_touched for memory in backend.memories) / 2  # keys and values
        allowed = sum(2 * length + _SLACK_TOKENS for length in lengths) + longest  # the spare
        assert touched <= allowed


def test_a_row_that_grows_gives_nothing_back():
    backend = Backend()
    kv = ConcatenatedKV(backend, LAYERS, "float32", Extent(2, CAPACITY))
    for num_tokens in range(100, 5000, 100):
        written(kv, 0, num_tokens)
    sides = sorted(memory.num_touched for memory in backend.memories)[-4:]
    assert sides == [4800, 4800, 4900, 4900]
