from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.bundle.manifest import KVLayer
from twostroke.errors import OutOfMemoryError
from twostroke.life.memory import auto_budget_bytes, kv_bytes_per_token, kv_capacity, plan_memory


def test_smollm2_takes_45_kib_a_token():
    layers = (KVLayer(num_kv_heads=3, head_dim=64),) * 30
    assert kv_bytes_per_token(layers, "float32") == 46080
    assert kv_bytes_per_token(layers, "float16") == 23040


def test_layers_may_differ():
    layers = (KVLayer(num_kv_heads=1, head_dim=8), KVLayer(num_kv_heads=2, head_dim=4))
    assert kv_bytes_per_token(layers, "float32") == 2 * 4 * (8 + 8)


@pytest.mark.parametrize(
    ("context", "capacity"), [(1, 8), (7, 8), (8, 16), (512, 520), (8192, 8200)]
)
def test_a_row_holds_more_than_the_context(context, capacity):
    assert kv_capacity(context) == capacity


def plan(budget_bytes: int, **changes):
    given = {"bytes_per_token": 10, "context_tokens": 15, "max_rows": 4, "touches_lazily": True}
    return plan_memory(budget_bytes=budget_bytes, **(given | changes))


def test_untouched_rows_are_free_where_memory_is_lazy():
    assert (plan(160).num_rows, plan(160).kv_tokens_total) == (4, 16)
    assert plan(10**9).kv_tokens_total == 4 * 16
    assert plan(205).kv_bytes == 200


def test_rows_are_paid_in_full_elsewhere():
    paid = plan(350, touches_lazily=False)
    assert (paid.num_rows, paid.kv_tokens_total, paid.kv_bytes) == (2, 32, 320)


def test_a_spare_row_is_paid_before_any_other():
    assert plan(160 + 50, spare_bytes_per_token=3).kv_tokens_total == 16
    spare = plan(160 + 48, spare_bytes_per_token=3)
    assert (spare.kv_tokens_total, spare.spare_bytes, spare.kv_bytes) == (16, 48, 208)
    with pytest.raises(OutOfMemoryError, match="to 7 or less"):
        plan(160 + 47, spare_bytes_per_token=3)
    plan(13 * 8, spare_bytes_per_token=3, context_tokens=7)


def test_a_budget_under_one_row_names_both_sizes_and_what_would_fit():
    with pytest.raises(
        OutOfMemoryError, match=r"15 tokens takes .*, the budget is .* to 7 or less"
    ):
        plan(159)


def test_a_budget_under_any_context_advises_no_context():
    with pytest.raises(OutOfMemoryError, match=r"the budget is 0\.1 KiB\. Raise kv\.budget\.$"):
        plan(79)


@given(
    st.integers(1, 10**5),
    st.integers(1, 10**5),
    st.integers(1, 64),
    st.integers(1, 10**9),
    st.booleans(),
)
def test_a_plan_never_exceeds_its_budget(bytes_per_token, context, max_rows, budget, lazy):
    try:
        made = plan_memory(
            bytes_per_token=bytes_per_token,
            context_tokens=context,
            max_rows=max_rows,
            budget_bytes=budget,
            touches_lazily=lazy,
        )
    except OutOfMemoryError as error:
        advised = re.search(r"context_tokens to (\d+) or less", str(error))
        if advised:
            fits = int(advised[1])
            assert fits < context
            plan_memory(
                bytes_per_token=bytes_per_token,
                context_tokens=fits,
                max_rows=max_rows,
                budget_bytes=budget,
                touches_lazily=lazy,
            )
        return
    assert made.kv_bytes <= budget
    assert 1 <= made.num_rows <= max_rows
    assert made.kv_tokens_total >= made.capacity_tokens > context


def test_the_automatic_budget_is_half_of_what_is_free(monkeypatch):
    monkeypatch.setattr("twostroke.life.memory.free_memory_bytes", lambda: 1000)
    assert auto_budget_bytes(400, is_host=True) == 500
    assert auto_budget_bytes(400, is_host=False) == 200
    assert auto_budget_bytes(None, is_host=False) == 500
