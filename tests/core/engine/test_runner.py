"""The runner against the echo backend, whose answers depend on every token in a row."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.bundle import open_bundle
from twostroke.engine.build import open_runner
from twostroke.engine.logits import MAX_KEPT_POSITIONS
from twostroke.errors import EngineError
from twostroke.testing import make_echo_bundle
from twostroke.testing.echo import EchoBackend, parse_options, probe
from twostroke.types import Stroke

from .conftest import PLACEMENTS, STANDARD

CHUNK = (10, 11, 12)


@pytest.fixture(params=PLACEMENTS.values(), ids=PLACEMENTS)
def runner(request, make_engine):
    return make_engine(started=False, **request.param).engine._runner


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
    kept = bindings._bound(0, 1, 3, (2,))
    prefill(runner, 0, CHUNK)
    assert bindings._bound(0, 1, 3, (2,)) is kept
    for length in range(1, 200):
        runner.prefill(0, 0, (5,) * length, is_last=True)
    assert len(bindings._kept) == 64
    assert prefill(runner, 0, CHUNK).shape == (1, runner.vocab_size)


def test_a_closed_runner_refuses(make_engine):
    runner = make_engine(started=False).engine._runner
    runner.close()
    with pytest.raises(EngineError):
        prefill(runner, 0, CHUNK)


def test_score_answers_what_follows_each_token(runner):
    ids = (10, 11, 12, 3, 10)
    scores = runner.score(0, 0, ids).copy()
    assert scores.shape == (5, runner.vocab_size)
    for length in range(1, 6):
        assert np.array_equal(scores[length - 1 : length], prefill(runner, 1, ids[:length]))
    assert np.array_equal(runner.decode(0, [11], [5]), prefill(runner, 2, (*ids, 11)))


@pytest.mark.parametrize("dialect", ["fused", "standard"])
@pytest.mark.parametrize("logits", ["tail", "all"])
def test_score_reads_what_other_tools_graphs_answer(make_engine, tmp_path, logits, dialect):
    bundle = make_echo_bundle(tmp_path / "echo", logits=logits, dialects=(dialect,))
    runner = make_engine(bundle, started=False).engine._runner
    test_score_answers_what_follows_each_token(runner)
    test_a_prompt_in_chunks_gives_what_it_gives_whole(runner)


def test_no_binding_keeps_the_logits_of_a_whole_chunk(make_engine, tmp_path):
    bundle = make_echo_bundle(tmp_path / "echo", logits="all")
    runner = make_engine(bundle, started=False).engine._runner
    for length in (1, 2, MAX_KEPT_POSITIONS + 1):
        prefill(runner, 0, (10,) * length)
    assert list(runner._prefill_runs._kept) == [(0, 1, 1, 1), (0, 1, 2, 1)]


@pytest.mark.parametrize("row_views", [True, False])
def test_logits_of_chunks_share_the_memory_of_the_longest(make_engine, tmp_path, row_views):
    bundle = make_echo_bundle(tmp_path / "echo", logits="all")
    runner = make_engine(bundle, started=False, row_views=row_views).engine._runner
    ids = (10, 11, 12, 13) * 5  # more than the few positions whose memory is kept for each number
    expected = runner.score(0, 0, ids).copy()
    kept = runner._prefill_runs._logits._several
    assert np.array_equal(runner.score(0, 0, ids[:-1]), expected[:-1])
    assert (runner._prefill_runs._logits._several is kept) == row_views
    assert np.array_equal(runner.score(0, 0, ids), expected)


def test_score_goes_on_with_what_decode_wrote(runner):
    prefill(runner, 0, (10, 11))
    runner.decode(0, [12], [2])
    scores = runner.score(0, 3, (3, 10)).copy()
    assert np.array_equal(scores[1:], prefill(runner, 1, (10, 11, 12, 3, 10)))
    again = runner.score(0, 1, (21,))  # cuts the row
    assert np.array_equal(again, prefill(runner, 1, (10, 21)))


def test_a_run_that_fails_leaves_a_growing_row_as_it_was(make_engine):
    options = {"dialects": STANDARD, "fail_decode_runs": [0], "fail_prefill_runs": [1]}
    runner = make_engine(started=False, **options).engine._runner
    runner.prefill(0, 0, (10, 11), is_last=False)
    with pytest.raises(EngineError, match="prefill run 1 fails"):
        runner.prefill(0, 2, (12, 13), is_last=True)
    expected = prefill(runner, 1, (10, 11, 12))
    assert np.array_equal(runner.prefill(0, 2, (12,), is_last=True), expected)
    with pytest.raises(EngineError, match="decode run 0 fails"):
        runner.decode(0, [13], [3])
    logits = runner.decode(0, [13], [3]).copy()
    assert np.array_equal(logits, prefill(runner, 1, (10, 11, 12, 13)))


def test_one_file_for_both_strokes_is_one_session(both_dialects):
    opened = open_bundle(both_dialects)
    backend = EchoBackend(probe().devices[0], parse_options({}))

    class OneGraph:
        manifest = opened.manifest

        def graph(self, stroke, dialect=None):
            return opened.graph(Stroke.PREFILL, "standard")

    dialects = dict.fromkeys(Stroke, "standard")
    runner = open_runner(
        OneGraph(), backend, backend, num_rows=2, context_tokens=64, dialects=dialects
    )
    assert backend.num_open_sessions == 1
    expected = prefill(runner, 0, (10, 11, 12))
    prefill(runner, 1, (10, 11))
    assert np.array_equal(runner.decode(1, [12], [2]), expected)
    runner.close()
    assert backend.num_open_sessions == 0
