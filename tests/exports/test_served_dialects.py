"""What is exported on first use is what the strokes run, each in its own dialect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from twostroke.model import Model
from twostroke.types import Stroke
from twostroke_export.testing.parity_checks import prompt

NUM_NEW = 12


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWOSTROKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def source(make_model) -> Path:
    return make_model("gemma2", sliding_window=16, head_dim=16, query_pre_attn_scalar=16)


@pytest.fixture(scope="module")
def expected(source) -> tuple[list[int], np.ndarray]:
    """Greedy ids after a prompt longer than the window, and the prompt's logits."""
    model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager").eval()
    ids = prompt(40)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].numpy()
        answer = model.generate(
            torch.tensor([ids]), max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, do_sample=False
        )
    return answer[0, len(ids) :].tolist(), logits


@pytest.mark.parametrize(("prefill", "decode"), [("standard", "fused"), ("fused", "standard")])
def test_a_mixed_placement_answers_as_the_source_does(cache, source, expected, prefill, decode):
    settings = {"prefill": {"dialect": prefill}, "decode": {"dialect": decode}}
    with Model.open(source, backend="cpu", precision="fp32", **settings) as model:
        report = model.placement_report
        assert [report[stroke]["dialect"] for stroke in Stroke] == [prefill, decode]
        assert set(model.bundle.manifest.dialects) == {prefill, decode}
        ids = tuple(prompt(40))
        greedy, logits = expected
        answers = [
            model.generate(ids, temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
            for _ in range(3)
        ]
        assert [list(answer.complete().token_ids) for answer in answers] == [greedy] * 3
        runner = model.engine._runner
        scores = np.concatenate(
            [runner.score(0, 0, ids[:24]).copy(), runner.score(0, 24, ids[24:])]
        )
        assert np.abs(scores - logits).max() < 1e-4
