"""How the memory of one device is shared out among models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twostroke.backends import Device
from twostroke.life.room import HOST, Demand, place_of, share_of, share_out

MODEL = Demand(HOST, needs_bytes=300, row_bytes=100, num_rows=8)


@pytest.mark.parametrize(("budget", "least"), [(None, 400), (250, 550), (9999, 1100), (10, 400)])
def test_the_least_is_one_sequence_or_the_budget(budget, least):
    assert replace(MODEL, budget_bytes=budget).least_bytes == least


@pytest.mark.parametrize(
    ("others", "left", "share"),
    [
        ([], 10_000, 800),  # no more than all rows
        ([], 900, 500),  # all that needs and the tenth leave
        ([MODEL], 10_000, 800),
        ([MODEL], 1200, 250),  # 1200 - 100 - 300 - 400 - 100 = 300 to share
        ([MODEL, MODEL], 1800, 266),
        ([replace(MODEL, budget_bytes=200)], 1200, 300),  # it has its own and shares no more
        ([MODEL], 700, 300),  # not both fit: this one takes what there is
        ([MODEL], 450, 100),  # never less than a sequence; whoever plans refuses
    ],
)
def test_shares_leave_others_the_least_and_are_equal(others, left, share):
    assert share_of(MODEL, others, left_bytes=left, place_bytes=1000) == share


def test_a_budget_of_the_yaml_stays():
    assert share_of(replace(MODEL, budget_bytes=7), [], left_bytes=0, place_bytes=0) == 7


def test_all_backends_on_the_processor_share_the_memory_of_the_host():
    assert place_of("cpu", Device(0, "Xeon", "cpu")) == HOST
    assert place_of("openvino", Device(0, "Xeon", "cpu")) == HOST
    assert place_of("cuda", Device(1, "H200", "gpu")) == "cuda 1 (H200)"


def test_models_take_their_shares_one_after_the_other():
    late = replace(MODEL, needs_bytes=900)
    first, second, third = share_out({"a": MODEL, "b": MODEL, "late": late}, 1500)
    assert (first.left_bytes, first.kv_bytes, first.fits) == (1500, 800, True)  # not all fit
    assert (second.left_bytes, second.fits) == (400, True)
    assert (third.left_bytes, third.fits) == (0, False)
    first, second = share_out({"a": MODEL, "b": MODEL}, 1500)
    assert (first.kv_bytes, second.left_bytes, second.kv_bytes) == (375, 825, 375)


def test_a_model_alone_has_all_its_rows():
    (alone,) = share_out({"a": MODEL}, 1200)
    assert (alone.kv_bytes, alone.planned_bytes, alone.fits) == (800, 1100, True)
