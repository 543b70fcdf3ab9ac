"""The conformance kit: one class to inherit proves that a backend serves the engine rightly.

    from twostroke.testing.conformance import BackendConformance

    class TestMine(BackendConformance):
        options = {"threads": 1}

        @pytest.fixture
        def spec(self):
            return my_plugin.twostroke_backends()[0]

        @pytest.fixture
        def bundle(self, tmp_path):
            return Path("a/small/bundle")       # or make_echo_bundle(...) where that can run

Tests are skipped with the probe's reason where there is no device. Needs pytest.
"""

# ruff: noqa: D102 - the name of a test says what it proves

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from twostroke.backends.protocol import Backend, BackendSpec
from twostroke.bundle import Bundle, open_bundle
from twostroke.engine.build import Dialects, open_runner
from twostroke.engine.runner import Runner
from twostroke.errors import EngineError
from twostroke.testing.device_conformance import DeviceConformance
from twostroke.types import Stroke

NUM_ROWS = 4
CONTEXT_TOKENS = 64

Logits = npt.NDArray[np.float32]


class BackendConformance(DeviceConformance):
    """What every backend must do. Override the fixtures `spec` and `bundle`.

    `tolerance` bounds the absolute difference of logits between two ways to the same answer
    (alone or in a batch, whole or in chunks), relative to the largest logit.
    """

    tolerance: float = 1e-3

    @pytest.fixture
    def bundle(self) -> Path:
        """A small bundle that the backend can run, with room for 64 tokens."""
        pytest.fail("override the fixture `bundle` to answer the folder of a small bundle")

    @pytest.fixture
    def opened(self, bundle: Path) -> Bundle:
        """The bundle, checked."""
        return open_bundle(bundle)

    @pytest.fixture
    def dialects(self, spec: BackendSpec) -> Dialects:
        """Which graphs of the bundle the strokes run: those that the spec wants."""
        return spec.dialect

    @pytest.fixture
    def open_strokes(
        self, backend: Backend, opened: Bundle, dialects: Dialects
    ) -> Callable[[], Runner]:
        """Opens both strokes of the bundle on the backend; the test closes the runner."""
        return lambda: open_runner(
            opened,
            backend,
            backend,
            num_rows=NUM_ROWS,
            context_tokens=CONTEXT_TOKENS,
            dialects=dialects,
        )

    @pytest.fixture
    def runner(self, open_strokes: Callable[[], Runner]) -> Iterator[Runner]:
        """Both strokes of the bundle on the backend."""
        runner = open_strokes()
        yield runner
        runner.close()

    def test_the_placement_is_told(self, runner: Runner) -> None:
        for stroke in Stroke:
            nodes = runner.placements[stroke].nodes
            assert sum(nodes.values()) > 0, f"no node of the {stroke} graph has a place"

    def test_a_prompt_in_chunks_equals_the_whole(self, runner: Runner) -> None:
        ids = prompt(runner, 1, 23)
        whole = prefill(runner, 0, ids)
        for chunk in (1, 7, 16):
            self.assert_close(prefill(runner, 1, ids, chunk), whole, f"chunks of {chunk}")

    def test_decode_continues_what_prefill_wrote(self, runner: Runner) -> None:
        ids = prompt(runner, 2, 12)
        expected = prefill(runner, 0, ids)
        prefill(runner, 1, ids[:9])
        for position in (9, 10, 11):
            logits = runner.decode(1, [ids[position]], [position]).copy()
        self.assert_close(logits, expected, "three decode steps")

    def test_a_ragged_batch_equals_each_alone(self, runner: Runner) -> None:
        if runner.max_span_rows == 1:
            pytest.skip("without views of rows, or with a cache that concatenates, there is none")
        prompts = [prompt(runner, row, length) for row, length in enumerate((3, 17, 1, 9))]
        alone = []
        for row, ids in enumerate(prompts):
            prefill(runner, row, ids)
            alone.append(runner.decode(row, [row + 1], [len(ids)]).copy())
        lengths = [len(ids) for ids in prompts]
        together = runner.decode(0, [1, 2, 3, 4], lengths)
        self.assert_close(together, np.concatenate(alone), "a batch of four")
        span = runner.decode(1, [2, 3], lengths[1:3])
        self.assert_close(span, np.concatenate(alone[1:3]), "a span of rows 1 and 2")

    def test_sequences_taking_turns_equal_each_alone(self, runner: Runner) -> None:
        prompts = [prompt(runner, 20 + row, length) for row, length in enumerate((3, 17, 1, 9))]
        alone = [prefill(runner, 0, (*ids, 1, 2)) for ids in prompts]
        for row, ids in enumerate(prompts):
            prefill(runner, row, ids)
        for row, ids in enumerate(prompts):
            runner.decode(row, [1], [len(ids)])
        for row, (ids, expected) in enumerate(zip(prompts, alone, strict=True)):
            logits = runner.decode(row, [2], [len(ids) + 1])
            self.assert_close(logits, expected, f"row {row}, taking turns with others")

    def test_an_idle_row_in_a_batch_keeps_its_tokens(self, runner: Runner) -> None:
        if runner.max_span_rows == 1:
            pytest.skip("without batches no row idles in one")
        ids = prompt(runner, 5, 20)
        expected = prefill(runner, 3, ids)
        prefill(runner, 0, ids[:4])
        runner.prefill(1, 0, ids[:11], is_last=False)
        prefill(runner, 2, ids[:2])
        runner.decode(0, [1, 0, 1], [4, 11, 2])
        logits = runner.prefill(1, 11, ids[11:], is_last=True)
        self.assert_close(logits, expected, "a row that idled in a batch")

    def test_a_row_forgets_its_last_sequence(self, runner: Runner) -> None:
        prefill(runner, 0, prompt(runner, 6, 30))
        ids = prompt(runner, 7, 5)
        self.assert_close(prefill(runner, 0, ids), prefill(runner, 1, ids), "a row used before")

    def test_scores_are_what_follows_each_token(self, runner: Runner) -> None:
        ids = prompt(runner, 9, 12)
        steps = [prefill(runner, 0, ids[:end]) for end in range(1, 13)]
        first = runner.score(1, 0, ids[:7]).copy()
        scores = np.concatenate([first, runner.score(1, 7, ids[7:])])
        self.assert_close(scores, np.concatenate(steps), "logits of every position of a chunk")

    def test_the_bundles_own_check_is_met(self, runner: Runner, opened: Bundle) -> None:
        check = opened.manifest.self_check
        if check is None:
            pytest.skip("the bundle carries no self check")
        ids = list(check.prompt_ids)
        logits = prefill(runner, 0, tuple(ids))
        for expected in check.greedy_ids[: CONTEXT_TOKENS - len(ids)]:
            assert int(logits[0].argmax()) == expected, f"after {len(ids)} tokens"
            logits = runner.decode(0, [expected], [len(ids)])
            ids.append(expected)

    def test_a_closed_session_refuses_and_another_opens(
        self, open_strokes: Callable[[], Runner]
    ) -> None:
        answers = []
        for _ in range(2):
            runner = open_strokes()
            answers.append(prefill(runner, 0, prompt(runner, 8, 5)))
            runner.close()
            with pytest.raises(EngineError):
                prefill(runner, 0, (1,))
        self.assert_close(answers[1], answers[0], "a session opened again")

    def assert_close(self, found: Logits, expected: Logits, what: str) -> None:
        """Fails where two ways to the same logits differ by more than `tolerance` allows."""
        assert np.isfinite(found).all(), f"{what}: logits that are no finite numbers"
        difference = float(np.abs(found - expected).max())
        allowed = self.tolerance * max(1.0, float(np.abs(expected).max()))
        assert difference <= allowed, f"{what}: logits differ by {difference:g}, not {allowed:g}"


def prompt(runner: Runner, seed: int, num_tokens: int) -> tuple[int, ...]:
    """Random ids of the vocabulary."""
    ids = np.random.default_rng(seed).integers(0, runner.vocab_size, num_tokens)
    return tuple(ids.tolist())


def prefill(runner: Runner, row: int, ids: tuple[int, ...], chunk: int = CONTEXT_TOKENS) -> Logits:
    """A copy of the logits after the last token, [1, vocab]."""
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        logits = runner.prefill(row, start, part, is_last=start + len(part) == len(ids))
    return logits.copy()
