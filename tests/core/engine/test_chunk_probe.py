"""Foreign graphs that were traced with one token are not believed to take several."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from twostroke.bundle import open_foreign
from twostroke.engine.build import open_runner

cpu = pytest.importorskip("twostroke_backends.cpu", reason="the CPU backend is not installed")

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
IDS = (7, 30, 4, 100, 250, 9, 12, 5, 77, 31)


@pytest.fixture
def open_strokes():
    opened = []

    def open_(folder, **changes):
        (device,) = cpu.probe().devices
        backend = cpu.CpuBackend(device, {"intra_op_threads": 1})
        given = {"num_rows": 2, "context_tokens": 64} | changes
        opened.append(open_runner(open_foreign(FOREIGN / folder), backend, backend, **given))
        return opened[-1]

    yield open_
    for runner in opened:
        runner.close()


def test_a_graph_without_a_mask_between_new_tokens_gets_whole_prompts(open_strokes, caplog):
    runner = open_strokes("optimum-gpt2-pair")
    assert not runner.chunks_prompts
    assert "decoder_with_past_model.onnx cannot go on with a prompt" in caplog.text
    whole = runner.score(0, 0, IDS).copy()
    runner.prefill(1, 0, IDS[:4], is_last=True)
    stepwise = runner.score(1, 4, IDS[4:])  # one token a run, which the graph does rightly
    assert np.abs(whole[4:] - stepwise).max() < 1e-4


@pytest.mark.parametrize(
    "folder", ["optimum-llama-past", "optimum-gpt2-past", "optimum-llama-merged"]
)
def test_a_graph_that_reads_on_rightly_gets_chunks(open_strokes, caplog, folder):
    runner = open_strokes(folder)
    assert runner.chunks_prompts
    assert caplog.records == []
    whole = runner.score(0, 0, IDS).copy()
    parts = [runner.score(1, start, IDS[start : start + 3]).copy() for start in range(0, 10, 3)]
    assert np.abs(whole - np.concatenate(parts)).max() < 1e-4


def test_a_context_too_short_to_try_gets_whole_prompts(open_strokes):
    assert not open_strokes("optimum-llama-past", context_tokens=8).chunks_prompts


def test_a_cache_that_is_written_in_place_needs_no_trial(open_strokes, caplog):
    with caplog.at_level(logging.DEBUG):
        runner = open_strokes("genai-llama-fp32", context_tokens=8)
    assert runner.chunks_prompts
    assert runner.max_span_rows is None


def test_rows_of_any_length_share_a_run_by_their_masks(open_strokes):
    runner = open_strokes("genai-llama-fp32", num_rows=3)
    alone = []
    for row, length in enumerate((3, 9, 1)):
        runner.prefill(row, 0, IDS[:length], is_last=True)
        alone.append(runner.decode(row, [20 + row], [length]).copy())
    together = runner.decode(0, [20, 21, 22], [3, 9, 1])
    assert np.abs(together - np.concatenate(alone)).max() < 1e-4
