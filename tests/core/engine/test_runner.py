"""The runner against the echo backend, whose answers depend on every token in a row."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.errors import EngineError

CHUNK = (10, 11, 12)


@pytest.fixture(params=["one backend", "no row views", "two backends"])
def runner(request, make_engine):
    options = {
        "one backend": {},
        "no row views": {"row_views": False},
        "two backends": {"decode_options": {}},
    }[request.param]
    return make_engine(started=False, **options).engine._runner


def prefill(runner, row, *chunks):
    start = 0
    for number, ids in enumerate(chunks, 1):
        logits = runner.prefill(row, start, ids, is_last=number == len(chunks)).copy()
        start += len(ids)
    return logits


def test_a_prompt_in_chunks_gives_what_it_gives_whole(runner):
    whole = prefill(runner, 0, (10, 11, 12, 13, 14))
    chunked = prefill(runner, 3, (10, 11), (12,), (13, 14))
    assert whole.shape == (1, runner.vocab_size)
    assert np.array_equal(whole, chunked)


def test_decode_sees_what_prefill_wrote(runner):
    logits = prefill(runner, 2, (10, 11, 12, 3))
    prefill(runner, 5, (10, 11, 12))
    decoded = runner.decode(5, [3], [3])
    assert np.array_equal(decoded, logits)


def test_rows_of_a_span_do_not_see_each_other(make_engine):
    runner = make_engine(started=False).engine._runner
    alone = []
    for row, ids in ((0, (10, 11)), (1, (20,)), (2, (30, 31, 32))):
        prefill(runner, row, ids)
        alone.append(runner.decode(row, [40 + row], [len(ids)]).copy())
    together = runner.decode(0, [40, 41, 42], [2, 1, 3])
    assert np.array_equal(together, np.concatenate(alone))


def test_an_idle_row_inside_a_span_keeps_its_tokens(make_engine):
    runner = make_engine(started=False).engine._runner
    expected = prefill(runner, 7, (20, 21, 22, 23))
    prefill(runner, 0, (10,))
    runner.prefill(1, 0, (20, 21), is_last=False)  # half read
    prefill(runner, 2, (30,))
    runner.decode(0, [41, 0, 42], [1, 2, 1])  # row 1 must not decode
    logits = runner.prefill(1, 2, (22, 23), is_last=True)
    assert np.array_equal(logits, expected)


def test_a_reused_row_does_not_remember(runner):
    prefill(runner, 0, (10, 11, 12, 13))
    again = prefill(runner, 0, (20, 21))
    assert np.array_equal(again, prefill(runner, 1, (20, 21)))


def test_bindings_are_kept_and_bounded(make_engine):
    runner = make_engine(started=False).engine._runner
    bindings = runner._prefill_runs
    prefill(runner, 0, CHUNK)
    kept = bindings._bound(0, 1, 3)
    prefill(runner, 0, CHUNK)
    assert bindings._bound(0, 1, 3) is kept
    for length in range(1, 200):
        runner.prefill(0, 0, (5,) * length, is_last=True)
    assert len(bindings._kept) == 64
    assert prefill(runner, 0, CHUNK).shape == (1, runner.vocab_size)


def test_a_closed_runner_refuses(make_engine):
    runner = make_engine(started=False).engine._runner
    runner.close()
    with pytest.raises(EngineError):
        prefill(runner, 0, CHUNK)
