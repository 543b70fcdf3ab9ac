"""Which drafts are verified: made-up costs, no clock."""

from __future__ import annotations

import pytest

from twostroke.engine.acceptance import Acceptance
from twostroke.engine.sequence import Sequence
from twostroke.engine.spans import split_spans
from twostroke.engine.speculation import (
    MARGIN,
    Guess,
    Speculation,
    choose_drafts,
    draft_lengths,
)
from twostroke.engine.step_costs import StepCosts
from twostroke.life.observe import RunFacts
from twostroke.types import Stroke


class Costs(StepCosts):
    """10 ms + 3 ms a row; a verification costs a step and so much a draft's token."""

    def __init__(self, token_s: float) -> None:
        super().__init__()
        self._token_s = token_s

    def decode_s(self, num_rows):
        return 0.010 + 0.003 * num_rows

    def verify_s(self, num_tokens):
        return 0.013 + self._token_s * (num_tokens - 1)


def guess(row: int, rate: float, length: int = 8) -> Guess:
    expected = {n: sum(rate**i for i in range(n + 1)) for n in draft_lengths(length)}
    return Guess(row, tuple(range(length)), expected)


def chosen(guesses, rows, token_s):
    return {
        row: len(draft)
        for row, draft in choose_drafts(guesses, rows, Costs(token_s), split_spans).items()
    }


def test_lengths_are_few():
    assert [draft_lengths(n) for n in (1, 2, 8, 12)] == [
        (1,),
        (1, 2),
        (1, 2, 4, 8),
        (1, 2, 4, 8, 12),
    ]


@pytest.mark.parametrize(
    ("rate", "token_s", "length"),
    [(0.95, 0.001, 8), (0.5, 0.001, 2), (0.9, 0.008, 2), (0.1, 0.001, 0), (0.9, 0.02, 0)],
)
def test_a_sequence_alone_gets_the_draft_that_pays_most(rate, token_s, length):
    assert chosen([guess(3, rate)], [3], token_s).get(3, 0) == length


def test_what_pays_alone_may_not_pay_in_a_batch():
    assert chosen([guess(0, 0.6)], [0], 0.002) == {0: 2}
    assert chosen([guess(0, 0.6)], range(8), 0.002) == {}
    assert chosen([guess(0, 0.99)], range(8), 0.0005) == {0: 8}


def test_a_gain_within_the_margin_is_left():
    just = Guess(0, (1,), {1: MARGIN * 0.999})
    more = Guess(0, (1,), {1: MARGIN * 1.001})
    assert [chosen([each], [0], 0.0) for each in (just, more)] == [{}, {0: 1}]


def test_all_of_a_batch_may_be_verified_where_runs_are_cheap():
    class Cheap(Costs):
        def verify_s(self, num_tokens):
            return 0.004

    rows = range(4)
    drafts = choose_drafts([guess(row, 0.9) for row in rows], rows, Cheap(0.0), split_spans)
    assert {row: len(draft) for row, draft in drafts.items()} == dict.fromkeys(rows, 8)


def facts(seconds, num_new, *, drafted=0, rows=1, stroke=Stroke.DECODE):
    return RunFacts(stroke, rows, num_new, 100, 5.0, 5.0 + seconds, drafted)


def test_costs_are_learned_by_size_and_unknown_ones_are_guessed():
    costs = StepCosts()
    assert (costs.decode_s(1), costs.verify_s(2)) == (None, None)
    costs.ran(facts(9.0, 64, stroke=Stroke.PREFILL))
    assert costs.decode_s(1) is None
    costs.ran(facts(1.0, 1))
    assert costs.decode_s(1) == 1.0
    assert 1.0 < costs.decode_s(4) < 4.0
    assert 1.0 < costs.verify_s(5) < 2.0
    costs.ran(facts(2.5, 4, rows=4))
    assert costs.decode_s(4) == 2.5


def test_a_first_slow_run_is_not_believed_and_an_old_one_is_asked_again():
    costs = StepCosts()
    costs.ran(facts(1.0, 1))
    costs.ran(facts(30.0, 5, drafted=4))
    assert costs.verify_s(5) < 2.0
    costs.ran(facts(3.0, 5, drafted=4))
    assert costs.verify_s(5) == 3.0
    for _ in range(513):
        costs.ran(facts(1.0, 1))
    assert costs.verify_s(5) < 2.0
    costs.ran(facts(3.0, 5, drafted=4))
    assert costs.verify_s(5) == 3.0


def test_one_stalled_run_moves_an_average_little():
    costs = StepCosts()
    for seconds in (1.0, 1.0, 1000.0):
        costs.ran(facts(seconds, 1))
    assert costs.decode_s(1) == pytest.approx(1.125)


def test_rates_are_learned_by_match_and_handed_to_new_sequences():
    engine = Acceptance()
    first = Acceptance(engine)
    before = first.rate(2)
    for _ in range(200):
        first.note(2, is_right=False)
        first.note(20, is_right=True)
    assert first.rate(2) < 0.01 < engine.rate(2) < before / 5
    assert first.rate(20) > 0.99
    assert Acceptance(engine).rate(2) == engine.rate(2)
    assert first.expected_tokens(20, 8) > 8
    assert first.expected_tokens(2, 8) < 1.01


def decoding(prompt, answer, max_total=100):
    sequence = Sequence("a", tuple(prompt), max_total)
    sequence.answer_ids += answer
    return sequence


def test_drafts_leave_room_for_the_token_behind_them():
    speculation = Speculation("on", 8, Costs(0.0))
    drafts = []
    for room in range(7):
        sequence = decoding([1, 2, 3, 4, 5, 6], [1, 2], max_total=8 + room)
        speculation.read(sequence, 3)
        speculation.read(sequence, 6)
        drafts.append(len(speculation.choose({0: sequence}, split_spans).get(0, ())))
        speculation.forget(sequence)
    assert drafts == [0, 0, 1, 2, 2, 4, 4]


def test_a_sequence_that_proves_guesses_wrong_is_left_alone():
    speculation = Speculation("auto", 8, Costs(0.003))
    sequence = decoding(
        [1, 2]
        + [n for pair in zip(range(10, 60), range(60, 110), strict=True) for n in (1, 2, *pair)],
        [1],
        max_total=10**4,
    )
    speculation.read(sequence, len(sequence.prompt_ids))
    tried = []
    for number in range(40):
        sequence.answer_ids += [2]
        tried.append(bool(speculation.choose({0: sequence}, split_spans)))
        sequence.answer_ids += [1000 + number, 1]
    assert not any(tried[10:])


def test_a_long_prompt_is_indexed_at_its_end_only():
    speculation = Speculation("on", 4, Costs(0.0))
    prompt = [7, 8, 9, *range(100, 40_000), 1, 2, 3, 4, 1, 2]
    sequence = decoding(prompt, [3], max_total=50_000)
    speculation.read(sequence, len(prompt))
    assert speculation.choose({5: sequence}, split_spans) == {5: (4, 1, 2, 3)}
