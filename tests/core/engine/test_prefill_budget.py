"""Chunks are as long as streams may stall: a model of what they cost, learned from runs."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.kv_cache import KVCache
from twostroke.engine.prefill_budget import PrefillBudget, PrefillCost, chunk_lengths
from twostroke.engine.prefix_store import StoredPrefix
from twostroke.engine.scheduler import Plan, Scheduler
from twostroke.engine.sequence import Sequence
from twostroke.engine.transfer_costs import TransferCosts
from twostroke.engine.transfers import RowCopy, RowRestore, RowSave
from twostroke.life.observe import RunFacts
from twostroke.types import Stroke


def true_cost_s(num_tokens: int, start: int, speed: float = 1.0) -> float:
    return speed * (0.004 + 1e-3 * num_tokens + 4e-7 * num_tokens * (start + num_tokens / 2))


def ran(budget: PrefillBudget, stroke: Stroke, num_tokens: int, start: int, took_s: float) -> None:
    budget.ran(RunFacts(stroke, 1, num_tokens, start, 0.0, took_s))


def test_lengths_are_few_halves():
    assert chunk_lengths(256) == (256, 128, 64, 32, 16)
    assert chunk_lengths(100) == (100, 50, 25)
    assert chunk_lengths(4) == (4,)


def test_nothing_decodes_so_chunks_are_whole():
    budget = PrefillBudget(256, 0.001)
    assert budget.step(0).take(0, 1000) == 256


def test_without_a_bound_chunks_are_whole_while_others_decode():
    budget = PrefillBudget(256)
    ran(budget, Stroke.PREFILL, 256, 0, 9.0)
    assert budget.step(1).take(0, 1000) == 256


def test_the_first_guess_is_careful_and_one_run_corrects_it():
    budget = PrefillBudget(256, 0.1)
    assert budget.step(1).take(0, 1000) == 64
    ran(budget, Stroke.PREFILL, 256, 0, 0.02)
    assert budget.step(1).take(0, 1000) == 256


def test_decode_runs_take_their_part_of_the_time():
    budget = PrefillBudget(256, 0.2)
    for _ in range(30):
        ran(budget, Stroke.PREFILL, 128, 0, 0.128)
        ran(budget, Stroke.DECODE, 4, 0, 0.05)
    assert budget.step(1).take(0, 1000) == 128
    assert budget.step(2).take(0, 1000) == 64


def test_a_prompt_gets_on_however_slow_the_device_is():
    budget = PrefillBudget(64, 0.01)
    ran(budget, Stroke.PREFILL, 64, 0, 10.0)
    step = budget.step(1)
    assert step.take(0, 1000) == 16
    assert step.take(0, 1000) == 0


def test_chunks_shorten_as_the_context_grows():
    cost = PrefillCost()
    for start in range(0, 8192, 256):
        cost.observe(256, start, true_cost_s(256, start))
    for num_tokens, start in ((256, 0), (64, 4000), (256, 8000)):
        assert cost.predict_s(num_tokens, start) == pytest.approx(
            true_cost_s(num_tokens, start), rel=0.15
        )


def test_one_hiccup_of_the_machine_is_soon_forgotten():
    cost = PrefillCost()
    for _ in range(40):
        cost.observe(128, 0, 0.1)
    cost.observe(128, 0, 60.0)
    assert cost.predict_s(128, 0) < 0.12


@given(
    seen=st.lists(
        st.tuples(st.integers(1, 512), st.integers(0, 8192), st.floats(0, 1e3)), max_size=60
    )
)
def test_whatever_was_seen_predictions_are_finite_and_grow_with_the_chunk(seen):
    cost = PrefillCost()
    for num_tokens, start, took_s in seen:
        cost.observe(num_tokens, start, took_s)
    predicted = [cost.predict_s(n, 1000) for n in (1, 16, 64, 256)]
    assert predicted[0] >= 0
    assert predicted[-1] < float("inf")
    assert all(short <= long for short, long in pairwise(predicted))


class Device:
    """A fake device: runs plans on a scheduler and says how long each step took."""

    def __init__(self, scheduler: Scheduler, speed: float = 1.0) -> None:
        self.scheduler, self.speed, self.now = scheduler, speed, 0.0
        self.told: dict[str, list[float]] = {}  # when each sequence got its tokens

    def _tell(self, sequence: Sequence) -> None:
        sequence.answer_ids.append(1)
        self.told.setdefault(sequence.request_id, []).append(self.now)

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        for chunk in plan.prefill:
            took_s = true_cost_s(len(chunk.token_ids), chunk.start, self.speed)
            self._run(Stroke.PREFILL, len(chunk.token_ids), chunk.start, took_s)
            self.scheduler.commit_prefill(chunk)
            if chunk.is_last:
                self._tell(chunk.sequence)
        for batch in plan.decode:
            served = [s for s in batch.sequences if s is not None]
            self._run(Stroke.DECODE, len(served), 0, 0.01 * self.speed)
            for sequence in served:
                self.scheduler.commit_decode(sequence)
                self._tell(sequence)
        for sequence in [s for b in plan.decode for s in b.sequences if s is not None]:
            if sequence.is_full:
                self.scheduler.end(sequence)
        self.scheduler.check()
        return plan

    def _run(self, stroke: Stroke, num_tokens: int, start: int, took_s: float) -> None:
        facts = RunFacts(stroke, 1, num_tokens, start, self.now, self.now + took_s)
        self.now += took_s
        self.scheduler.budget.ran(facts)


def make_device(max_stall_s: float, speed: float = 1.0) -> Device:
    cache = KVCache(4, row_tokens=9000, num_tokens=36000)
    return Device(
        Scheduler(cache, max_queue=64, prefill_chunk_tokens=256, max_stall_s=max_stall_s), speed
    )


def prompt(name: str, num_tokens: int, num_answer: int = 2) -> Sequence:
    ids = tuple(zlib.crc32(f"{name}{n}".encode()) % 1000 for n in range(num_tokens))
    return Sequence(name, ids, num_tokens + num_answer)


@pytest.mark.parametrize("speed", [0.3, 1.0, 1.6])
def test_a_stream_stalls_no_longer_than_it_should_while_long_prompts_arrive(speed):
    device = make_device(0.1, speed)
    stream = prompt("stream", 300, 3000)
    device.scheduler.submit(stream)
    while len(stream.answer_ids) < 3:
        device.step()
    for number in range(3):
        device.scheduler.submit(prompt(f"long{number}", 4000))
    gaps, lengths = [], set()
    while device.scheduler.num_running > 1:
        began = device.now
        plan = device.step()
        gaps.append(device.now - began)
        lengths |= {len(chunk.token_ids) for chunk in plan.prefill if not chunk.is_last}
    # A few steps learn what a longer past costs; from then on the bound holds.
    assert sorted(gaps)[int(len(gaps) * 0.98)] <= 0.1
    assert max(gaps) <= 0.15
    assert sum(gaps) / len(gaps) > 0.05, "the budget was not used"
    assert lengths <= {256, 128, 64, 32, 16}


def test_an_answer_that_has_begun_does_not_wait_for_the_rest_of_its_step_and_all_of_the_next():
    """Its first token comes in the middle of a step, whether or not others decode meanwhile."""
    device = make_device(0.1)
    for number in range(12):
        device.scheduler.submit(prompt(f"long{number}", 900, 4))
        device.scheduler.submit(prompt(f"short{number}", 60, 4))
    while device.scheduler.num_running:
        device.step()
    gaps = [after - before for told in device.told.values() for before, after in pairwise(told)]
    assert len(device.told) == 24
    assert max(gaps) <= 0.11, "what is predicted is not quite what comes"
    assert device.now < 15, "it takes 14.6 s without a bound"


def test_what_a_step_copies_is_time_that_its_chunks_do_not_have():
    budget = PrefillBudget(256, 0.2)
    for _ in range(20):
        ran(budget, Stroke.PREFILL, 128, 0, 0.128)
        ran(budget, Stroke.DECODE, 1, 0, 0.01)
    copy = RowCopy(0, 1, 1000, None)
    assert budget.step(1).take(0, 1000) == 128
    for took_s, num_tokens in ((0.001, 128), (0.1, 64), (0.19, 16)):
        for _ in range(30):
            budget.transfers.observe(copy, took_s)
        step = budget.step(1)
        step.pass_s(budget.transfers.predict_s([copy]))
        assert step.take(0, 1000) == num_tokens


def test_a_transfer_costs_what_its_kind_took_of_late():
    costs = TransferCosts()
    entry = StoredPrefix("", bytes(4 * 1000), 1)
    copy, save = RowCopy(0, 1, 100, None), RowSave(0, 100, "", b"")
    restore = RowRestore(entry, 0, 10, prompt("restored", 20))
    for transfer, took_s in ((copy, 0.01), (save, 0.02), (restore, 0.3)):
        costs.observe(transfer, took_s)
    assert costs.predict_s([copy, save]) == pytest.approx(0.03)
    assert costs.predict_s([restore]) == pytest.approx(0.3), "all of an entry is read"
    costs.observe(copy, 60.0)
    assert costs.predict_s([copy]) < 0.02, "one hiccup"


def test_where_the_shortest_chunk_takes_too_long_a_longer_one_that_takes_hardly_more_is_read():
    budget = PrefillBudget(256, 0.01)
    for _ in range(30):
        for num_tokens in (16, 64, 256):
            ran(budget, Stroke.PREFILL, num_tokens, 0, 0.02 + 3e-5 * num_tokens)
    assert budget.step(1).take(0, 1000) >= 64


def test_a_short_prompt_waits_for_two_chunks_of_a_long_one_and_delays_it_little():
    device = make_device(10.0)
    long = prompt("long", 8000)
    device.scheduler.submit(long)
    for _ in range(3):
        device.step()
    short = prompt("short", 100)
    device.scheduler.submit(short)
    device.step()
    device.step()
    assert short.answer_ids, "the short prompt was not read within two steps"
    num_steps = 0
    while not long.answer_ids:  # short prompts go on arriving
        if device.scheduler.num_running < 4:
            device.scheduler.submit(prompt(f"short{num_steps}", 200, 1))
        device.step()
        num_steps += 1
    assert num_steps <= 2 * (8000 // 256 + 1)
