from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.bundle.manifest import KVLayer
from twostroke.errors import OutOfMemoryError
from twostroke.life.memory import kv_bytes_per_token, kv_capacity, plan_memory
from twostroke.life.needs import Needs


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


def plan(budget_bytes: int | None, **changes):
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
    assert [spare.kv_bytes_now(5, tokens) for tokens in (0, 5, 16, 99)] == [50, 65, 98, 98]
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


NEEDS = Needs(60, 20, 20, free_bytes=1000)


def test_the_automatic_budget_is_what_weights_and_workspace_leave_less_a_tenth():
    assert NEEDS.left_bytes == 1000 - 100 - 100
    assert plan(None, needs=NEEDS, max_rows=100).budget_bytes == 800
    assert Needs(600, 300, 200, free_bytes=1000).left_bytes == 0


def test_the_whole_plan_counts_what_is_beside_the_cache():
    made = plan(320, needs=NEEDS)
    assert (made.kv_bytes, made.total_bytes) == (320, 420)
    assert [made.bytes_now(tokens) for tokens in (0, 7, 32, 1000)] == [100, 170, 420, 420]
    scored = plan(320, needs=Needs(60, 20, 20, free_bytes=1000, scoring_bytes=50))
    assert (scored.total_bytes, scored.bytes_now(32)) == (470, 420)
    paid = plan(320, needs=NEEDS, touches_lazily=False)
    assert [paid.bytes_now(tokens) for tokens in (0, 8, 32)] == [100, 180, paid.total_bytes]


def test_no_row_beside_the_weights_is_refused_with_every_number():
    mib = 2**20
    tight = Needs(600 * mib, 200 * mib, 100 * mib, free_bytes=1000 * mib)
    with pytest.raises(OutOfMemoryError) as refused:
        plan(None, needs=tight, bytes_per_token=mib)
    for part in ("0.0 KiB", "16.0 MiB", "800.0 MiB of weights", "100.0 MiB of workspace"):
        assert part in str(refused.value)
    with pytest.raises(OutOfMemoryError) as refused:  # a budget that the machine does not have
        plan(500 * mib, needs=tight, bytes_per_token=8 * mib)
    assert "128.0 MiB, beside 800.0 MiB of weights" in str(refused.value)
    assert "1000.0 MiB of free memory: together 1028.0 MiB" in str(refused.value)
