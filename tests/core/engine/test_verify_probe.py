"""Speculation is left alone where a verification would say something else than decoding."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from twostroke.engine import EngineLimits, SyncEvents, exactness
from twostroke.engine.runner import Runner
from twostroke.engine.verify_probe import (
    TOLERANCE,
    continuation_difference,
    verification_difference,
)
from twostroke.testing.engines import Answer, collect
from twostroke.types import Request, SamplingParams


class Played:
    """A runner whose logits are 10 at the token after the one that was fed, plus a verification's
    fault, and another one for each token of the row that was decoded."""

    vocab_size = 32

    def __init__(self, fault: float = 0.0, memory_fault: float = 0.0) -> None:
        self.fault, self.memory_fault = fault, memory_fault
        self.row: list[int] = []
        self.num_decoded = 0

    def prefill(self, row: int, start: int, token_ids: list[int], *, is_last: bool) -> np.ndarray:
        self.row, self.num_decoded = [*self.row[:start], *token_ids], 0
        return self._logits(token_ids[-1:])

    def decode(self, row: int, token_ids: list[int], past_lengths: list[int]) -> np.ndarray:
        assert past_lengths == [len(self.row)]
        self.row += token_ids
        self.num_decoded += 1
        return self._logits(token_ids) + self.memory_fault * (self.num_decoded - 1)

    def verify(self, row: int, start: int, token_ids: list[int]) -> np.ndarray:
        assert start == len(self.row)
        return self._logits(token_ids) + self.fault

    def _logits(self, token_ids: list[int]) -> np.ndarray:
        logits = np.zeros((len(token_ids), self.vocab_size), np.float32)
        logits[range(len(token_ids)), [(token + 1) % self.vocab_size for token in token_ids]] = 10
        return logits


@pytest.mark.parametrize("fault", [0.0, 0.001, 0.5])
def test_the_difference_is_a_part_of_the_largest_logit(fault):
    assert verification_difference(Played(fault), 64) == pytest.approx(fault / 10, abs=1e-6)


@pytest.mark.parametrize("fault", [0.0, 0.001, 0.5])
def test_what_was_decoded_before_is_told_from_what_was_read(fault):
    found = continuation_difference(Played(memory_fault=fault), 64)
    assert found == pytest.approx(4 * fault / 10, rel=1e-3, abs=1e-6)


def test_a_context_too_short_to_try_has_none():
    assert verification_difference(Played(5.0), 8) == 0.0
    assert continuation_difference(Played(memory_fault=5.0), 9) == 0.0


@pytest.fixture
def differing(monkeypatch) -> None:
    """As if the weights were quantised and the kernels rounded."""
    monkeypatch.setattr(Runner, "verifies_floats", False)
    monkeypatch.setattr(exactness, "verification_difference", lambda *_: 2 * TOLERANCE)


def speculation_of(make_engine, mode: str) -> object:
    limits = EngineLimits(prefill_chunk_tokens=16, kv_budget_bytes=2**20, speculation=mode)
    echo = make_engine(started=False, limits=limits)
    echo.engine.check()
    return echo.engine._intake._scheduler.speculation


def test_where_both_agree_auto_speculates(make_engine):
    assert speculation_of(make_engine, "auto") is not None


def test_where_they_differ_auto_does_not_and_says_why(make_engine, differing, caplog):
    with caplog.at_level(logging.INFO, logger="twostroke"):
        assert speculation_of(make_engine, "auto") is None
    assert "no speculation, because answers may differ" in caplog.text
    assert "0.2%" in caplog.text


def test_where_they_differ_on_does_with_a_warning(make_engine, differing, caplog):
    assert speculation_of(make_engine, "on") is not None
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "answers may differ from plain decoding" in warning.getMessage()


@pytest.fixture
def decoding_otherwise(monkeypatch) -> None:
    """As if what is decoded were written to the cache with other roundings."""
    monkeypatch.setattr(Runner, "computes_floats_alike", False)
    monkeypatch.setattr(exactness, "continuation_difference", lambda *_: 2 * TOLERANCE)


def cached_of_a_second_turn(make_engine, reuse: str) -> tuple[int, int]:
    """What of it was in the cache, and how many tokens the first turn's prompt had."""
    limits = EngineLimits(prefill_chunk_tokens=16, kv_budget_bytes=2**20, reuse_prefixes=reuse)
    engine = make_engine(started=True, limits=limits).engine
    prompt = tuple(range(5, 45))
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

    def ask(name: str, ids: tuple[int, ...]) -> Answer:
        return collect(SyncEvents(engine, [Request(name, ids, sampling)]))

    first = ask("first", prompt)
    second = ask("second", (*prompt, *first.token_ids, 7, 8, 9))
    return second.end.num_cached_tokens, len(prompt)


@pytest.mark.parametrize(
    ("reuse", "num_more"), [("exact", 0), ("all", 11), ("off", -40)], ids=["exact", "all", "off"]
)
def test_where_decoding_writes_otherwise(make_engine, decoding_otherwise, reuse, num_more):
    num_cached, num_prompt = cached_of_a_second_turn(make_engine, reuse)
    assert num_cached == num_prompt + num_more


def test_where_decoding_writes_the_same_all_is_exact(make_engine):
    num_cached, num_prompt = cached_of_a_second_turn(make_engine, "exact")
    assert num_cached == num_prompt + 11, "all but the answer's last token, which nobody fed"
