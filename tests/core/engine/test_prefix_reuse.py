"""Answers stay what they are when prefixes are reused, and no prompt is computed twice.

The echo backend answers from what a row really holds, so a wrong token in it shows.
"""

from __future__ import annotations

import dataclasses

import pytest

from twostroke.engine import EngineLimits
from twostroke.errors import EngineError
from twostroke.testing.bundles import SEPARATOR_ID
from twostroke.types import FailedEvent, Request, SamplingParams, Stroke

from .conftest import PLACEMENTS

LONG = tuple(range(10, 60))


class Computed:
    """Counts prompt tokens that were computed."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def ran(self, facts) -> None:
        self.num_tokens += facts.num_new_tokens * (facts.stroke is Stroke.PREFILL)

    def ended(self, end) -> None:
        pass

    def told(self, *facts) -> None:
        pass


class Conversation:
    """An engine whose steps the test makes, and what it computes."""

    def __init__(self, engine, recorder) -> None:
        self.engine = engine
        self.recorder = recorder
        self.computed = Computed()
        engine.observers.add(self.computed)
        self.num_requests = 0

    def submit(self, prompt, *, max_tokens=None, **facts):
        self.num_requests += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        request = Request(f"r{self.num_requests}", tuple(prompt), sampling, **facts)
        sink = self.recorder()
        self.engine.submit(request, sink, arrived_at=0.0)
        return sink

    def run(self, *sinks) -> list[list[int]]:
        while not all(sink.ends for sink in sinks):
            self.engine.run_step()
            self.engine.check()
        return [sink.token_ids for sink in sinks]

    def ask(self, prompt, **facts) -> list[int]:
        return self.run(self.submit(prompt, **facts))[0]

    def take_count(self) -> int:
        count, self.computed.num_tokens = self.computed.num_tokens, 0
        return count


@pytest.fixture(params=PLACEMENTS.values(), ids=PLACEMENTS)
def placed(request, make_engine, recorder):
    return Conversation(make_engine(started=False, **request.param).engine, recorder)


@pytest.fixture
def talk(make_engine, recorder):
    return Conversation(make_engine(started=False).engine, recorder)


def test_a_second_turn_is_answered_right_and_computes_only_what_is_new(placed):
    assert placed.ask(LONG, max_tokens=9) == [SEPARATOR_ID, *LONG[:8]]
    assert placed.take_count() == 50
    # The first turn and its answer, which the echo goes on with.
    again = [*LONG, SEPARATOR_ID, *LONG[:8]]
    sink = placed.submit([*again, LONG[8]], max_tokens=5)
    assert placed.run(sink) == [list(LONG[9:14])]
    assert placed.take_count() == 2  # the answer's last token never was in the row
    assert sink.ends[0].num_cached_tokens == 58
    # Another second turn: what the row holds behind the prompt is cut off.
    assert placed.ask([*LONG, 70, 71]) == [SEPARATOR_ID, *LONG, 70, 71]
    assert placed.take_count() == 2


def test_one_system_prompt_for_many_is_computed_once(placed):
    prompts = [[*LONG, 100 + i, 101 + i] for i in range(6)]
    answers = placed.run(*[placed.submit(prompt) for prompt in prompts])
    assert answers == [[SEPARATOR_ID, *prompt] for prompt in prompts]
    assert placed.take_count() == 50 + 6 * 2
    stats = placed.engine.stats()
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (6 * 52, 5 * 50)
    assert stats.num_prefix_hits == 5
    assert stats.num_copied_tokens >= 5 * 50


def test_equal_prompts_are_read_once(placed):
    answers = placed.run(*[placed.submit(LONG) for _ in range(4)])
    assert answers == [[SEPARATOR_ID, *LONG]] * 4
    assert placed.take_count() == 50 + 3


def test_more_prompts_than_rows_are_answered_right(placed):
    prompts = [(*LONG[: 20 + i], *range(100 + i, 120 + i)) for i in range(20)]
    for turn in range(2):
        sinks = [placed.submit([*prompt, 90 + turn]) for prompt in prompts]
        for prompt, answer in zip(prompts, placed.run(*sinks), strict=True):
            assert answer == [SEPARATOR_ID, *prompt, 90 + turn]


def test_an_aborted_leader_leaves_what_it_read(placed):
    leader, follower = placed.submit(LONG), placed.submit([*LONG, 99])
    placed.engine.run_step()
    placed.engine.run_step()
    placed.engine.abort("r1")
    (answer,) = placed.run(follower)
    assert answer == [SEPARATOR_ID, *LONG, 99]
    assert leader.reason == "aborted"
    assert placed.take_count() == 51


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_leader_that_fails_leaves_nothing(make_engine, recorder, placement):
    engine = make_engine(started=False, fail_prefill_runs=[2], **placement).engine
    talk = Conversation(engine, recorder)
    leader, follower = talk.submit(LONG), talk.submit([*LONG, 99])
    assert talk.run(leader, follower)[1] == [SEPARATOR_ID, *LONG, 99]
    assert isinstance(leader.ends[0], FailedEvent)
    assert talk.take_count() == 2 * 16 + 51


def test_where_a_copy_fails_the_prompt_is_computed(talk, monkeypatch):
    working = talk.engine._runner.copy_row
    targets = []

    def broken(source, target, num_tokens):
        targets.append(target)
        if len(targets) == 1:
            raise EngineError("the device is gone")
        working(source, target, num_tokens)

    monkeypatch.setattr(talk.engine._runner, "copy_row", broken)
    sinks = [talk.submit([*LONG, 100 + i]) for i in range(3)]
    assert talk.run(*sinks) == [[SEPARATOR_ID, *LONG, 100 + i] for i in range(3)]
    assert talk.take_count() == 51 + 51 + 1
    assert [sink.ends[0].num_cached_tokens for sink in sinks] == [0, 0, 50]
    assert talk.engine.stats().num_prefix_hits == 1


def test_a_kept_row_that_could_not_be_moved_is_forgotten(make_engine, recorder, monkeypatch):
    limits = EngineLimits(max_rows=4, prefill_chunk_tokens=64, kv_budget_bytes=2**20)
    talk = Conversation(make_engine(started=False, limits=limits).engine, recorder)
    others = [range(100, 140), range(150, 190), range(200, 240)]
    first, _, last = (talk.submit(ids) for ids in others)
    talk.engine.run_step()
    talk.engine.abort("r2")

    def broken(source, target, num_tokens):
        raise EngineError("the device is gone")

    monkeypatch.setattr(talk.engine._runner, "copy_row", broken)
    assert talk.ask(LONG) == [SEPARATOR_ID, *LONG]  # in the row between the others
    talk.run(first, last)
    talk.take_count()
    assert talk.ask(others[1]) == [SEPARATOR_ID, *others[1]]
    assert talk.take_count() == 40


def test_scopes_share_nothing(placed):
    placed.ask(LONG, scope="a")
    placed.take_count()
    assert placed.ask(LONG, scope="b") == [SEPARATOR_ID, *LONG]
    assert placed.take_count() == 50
    assert placed.ask(LONG, scope="a") == [SEPARATOR_ID, *LONG]
    assert placed.take_count() == 1


def test_scopes_share_where_they_may(make_engine, recorder):
    limits = EngineLimits(share_prefixes=True, prefill_chunk_tokens=16, kv_budget_bytes=2**20)
    talk = Conversation(make_engine(started=False, limits=limits).engine, recorder)
    talk.ask(LONG, scope="a")
    talk.take_count()
    assert talk.ask(LONG, scope="b") == [SEPARATOR_ID, *LONG]
    assert talk.take_count() == 1


def test_a_scored_prompt_is_read_whole(talk):
    talk.ask(LONG)
    talk.take_count()
    sink = talk.recorder()
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)
    talk.engine.submit(Request("scored", LONG, sampling), sink, arrived_at=0.0)
    talk.run(sink)
    assert len(sink.ends[0].prompt_logprobs) == 50
    assert (talk.take_count(), sink.ends[0].num_cached_tokens) == (50, 0)


def test_without_reuse_every_prompt_is_computed(make_engine, recorder):
    limits = EngineLimits(reuse_prefixes="off", prefill_chunk_tokens=16, kv_budget_bytes=2**20)
    talk = Conversation(make_engine(started=False, limits=limits).engine, recorder)
    for _ in range(2):
        assert talk.ask(LONG) == [SEPARATOR_ID, *LONG]
    assert talk.take_count() == 100
    assert dataclasses.asdict(talk.engine.stats())["kv_tokens_kept"] == 0


def test_a_prompt_that_fails_to_decode_is_not_kept(make_engine, recorder):
    talk = Conversation(make_engine(started=False, fail_decode_runs=[3]).engine, recorder)
    talk.ask(LONG)
    talk.take_count()
    assert talk.ask(LONG) == [SEPARATOR_ID, *LONG]
    assert talk.take_count() == 50
