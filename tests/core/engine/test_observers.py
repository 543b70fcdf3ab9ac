"""What an engine tells of its runs and of the ends of its sequences."""

from __future__ import annotations

from twostroke.life.observe import End, RunFacts
from twostroke.types import FinishReason, SamplingParams, Stroke

GREEDY = SamplingParams(temperature=0.0)


class Listener:
    def __init__(self) -> None:
        self.runs: list[RunFacts] = []
        self.ends: list[End] = []
        self.gaps_s: list[float] = []

    def ran(self, facts: RunFacts) -> None:
        self.runs.append(facts)

    def told(self, gap_s: float) -> None:
        self.gaps_s.append(gap_s)

    def ended(self, end: End) -> None:
        self.ends.append(end)


def test_each_run_is_told_with_what_it_read(make_engine):
    echo = make_engine(started=False)
    listener = Listener()
    echo.engine.observers.add(listener)
    echo.engine.start()
    prompt = "the quick brown fox"  # 19 tokens, in chunks of 16
    echo.answer("a", prompt, GREEDY)
    facts = [(r.stroke, r.num_rows, r.num_new_tokens, r.num_past_tokens) for r in listener.runs]
    prefill, decode = (Stroke.PREFILL, 1), (Stroke.DECODE, 1, 1)
    assert facts == [
        (*prefill, 16, 0),
        (*prefill, 3, 16),
        *((*decode, past) for past in range(19, 19 + 20)),
    ]
    assert all(run.ended_at >= run.started_at for run in listener.runs)
    assert len(listener.gaps_s) == 20  # of 21 tokens, the end included


def test_each_end_is_told_once_and_before_the_caller_hears_of_it(make_engine):
    echo = make_engine(started=False)
    listener = Listener()
    echo.engine.observers.add(listener)
    echo.engine.start()
    answer = echo.answer("a", "hello", GREEDY)
    (end,) = listener.ends
    assert (end.outcome, end.reason) == ("finished", FinishReason.STOP)
    assert (end.num_prompt_tokens, end.num_completion_tokens) == (5, 7)
    assert end.timings == answer.end.timings
