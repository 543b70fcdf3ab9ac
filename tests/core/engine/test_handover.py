from __future__ import annotations

import numpy as np
import pytest

from twostroke.engine.handover import copy_tokens


class HostBuffer:
    """Shares its memory with whoever reads it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.dtype = str(values.dtype)
        self.writes = 0

    def read(self) -> np.ndarray:
        return self.values

    def write(self, values: np.ndarray) -> None:
        assert values.dtype == self.values.dtype
        self.writes += 1
        self.values[...] = values


class DeviceBuffer(HostBuffer):
    """Gives copies away, as a device must."""

    def read(self) -> np.ndarray:
        return self.values.copy()


def numbers(dtype: str) -> np.ndarray:
    return np.arange(1 * 2 * 6 * 3, dtype=dtype).reshape(1, 2, 6, 3)


@pytest.mark.parametrize("source_kind", [HostBuffer, DeviceBuffer])
@pytest.mark.parametrize("target_kind", [HostBuffer, DeviceBuffer])
@pytest.mark.parametrize("target_dtype", ["float32", "float16"])
def test_the_tokens_arrive(source_kind, target_kind, target_dtype):
    source = source_kind(numbers("float32"))
    target = target_kind(np.zeros((1, 2, 6, 3), target_dtype))
    copy_tokens(source, target, 4)
    assert np.array_equal(target.values[:, :, :4], source.values[:, :, :4])


def test_only_the_tokens_are_copied_between_host_memories():
    target = HostBuffer(np.full((1, 2, 6, 3), -1, "float32"))
    copy_tokens(HostBuffer(numbers("float32")), target, 4)
    assert (target.values[:, :, 4:] == -1).all()
    assert target.writes == 0
