from __future__ import annotations

import pytest

from twostroke.errors import ConfigError, OutOfMemoryError
from twostroke.life.offload import Half, Load, cost_sentence, fewest_front_layers

MIB = 2**20
LOAD = Load(
    num_layers=10,
    weights_bytes=120 * MIB,
    table_bytes=20 * MIB,
    kv_bytes=50 * MIB,
    workspace_bytes=5 * MIB,
)


@pytest.mark.parametrize(
    ("memory_mib", "num_front"),
    # 25 MiB stay whatever leaves; each layer takes 15; a tenth of the memory is left alone.
    [(1000, 0), (195, 0), (194, 1), (120, 5), (45, 9)],
)
def test_as_few_layers_leave_as_let_the_others_fit(memory_mib: int, num_front: int):
    assert fewest_front_layers("gpu", LOAD, memory_mib * MIB) == num_front


def test_a_device_that_cannot_hold_the_head_says_both_numbers():
    with pytest.raises(OutOfMemoryError, match=r"take 40\.0 MiB on .*'gpu', which has 36\.0 MiB"):
        fewest_front_layers("gpu", LOAD, 40 * MIB)


def test_a_device_of_unknown_memory_asks_for_a_number():
    with pytest.raises(ConfigError, match=r"'gpu' does not tell its memory.*offload\.layers"):
        fewest_front_layers("gpu", LOAD, None)


def test_the_cost_is_told_before_it_is_paid():
    front = Half("cpu", 0, 19, 80 * MIB, 20e9)
    back = Half("gpu", 20, 29, 40 * MIB, 400e9)
    told = cost_sentence(front, back)
    assert "layers 0 to 19 on cpu, 80.0 MiB a step, at least 4.19 ms" in told
    assert "layers 20 to 29 on gpu, 40.0 MiB a step, at least 0.105 ms with the head" in told
    assert told.endswith("at most 233 tokens a second alone")
    unknown = cost_sentence(front, Half("gpu", 20, 29, 40 * MIB, None))
    assert unknown.endswith("not both devices tell their bandwidth")
