"""Speculation is left alone where a verification would say something else than decoding."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from twostroke.engine import EngineLimits, build
from twostroke.engine.runner import Runner
from twostroke.engine.verify_probe import TOLERANCE, verification_difference


class Played:
    """A runner whose logits are 10 at the token after the one that was fed, plus a verification's
    fault."""

    vocab_size = 32

    def __init__(self, fault: float) -> None:
        self.fault = fault
        self.row: list[int] = []

    def prefill(self, row: int, start: int, token_ids: list[int], *, is_last: bool) -> np.ndarray:
        self.row = [*self.row[:start], *token_ids]
        return self._logits(token_ids[-1:])

    def decode(self, row: int, token_ids: list[int], past_lengths: list[int]) -> np.ndarray:
        assert past_lengths == [len(self.row)]
        self.row += token_ids
        return self._logits(token_ids)

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


def test_a_context_too_short_to_try_has_none():
    assert verification_difference(Played(5.0), 8) == 0.0


@pytest.fixture
def differing(monkeypatch) -> None:
    """As if the weights were quantised and the kernels rounded."""
    monkeypatch.setattr(Runner, "verifies_floats", False)
    monkeypatch.setattr(build, "verification_difference", lambda *_: 2 * TOLERANCE)


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
