"""lm-eval's local-completions: the same scores as its transformers gives the same weights."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from asking import FACTS, cell, equal

TASKS = Path(__file__).parent.parent / "tasks"
NAMES = ("choose_capital", "name_capital")
# Both run in fp32, so likelihoods differ by how sums are rounded only.
TOLERANCE = 5e-3

scratch = tempfile.TemporaryDirectory()
os.environ |= {"HF_HOME": scratch.name, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
os.environ["OPENAI_API_KEY"] = FACTS.key
os.chdir(TASKS)  # where the tasks' files are looked for
sys.path.append(FACTS.transformers)  # behind everything that lm-eval brings itself

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402


def evaluate(kind: str, arguments: str | dict[str, Any]) -> dict[str, Any]:
    return lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=list(NAMES),
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        batch_size=4,
        bootstrap_iters=0,
    )


def scores(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {
        name: {key: value for key, value in results["results"][name].items() if "," in key}
        for name in NAMES
    }


def answers(results: dict[str, Any], task: str) -> list[list[Any]]:
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [sample["filtered_resps"] for sample in samples]


@cell("completions", "whole")
def _() -> None:
    served = evaluate("local-completions", FACTS.lm_eval_arguments)
    weights = Path(FACTS.weights)
    loading = {"pretrained": str(weights.parent), "gguf_file": weights.name, "dtype": "float32"}
    tokens = {"tokenizer": FACTS.tokenizer, "add_bos_token": False}
    loaded = evaluate("hf", {**loading, **tokens, "device": "cpu"})
    equal(scores(served), scores(loaded))
    assert 0 < scores(loaded)["choose_capital"]["acc,none"] < 1, scores(loaded)
    assert 0 < scores(loaded)["name_capital"]["exact_match,none"] < 1, scores(loaded)
    equal(answers(served, "name_capital"), answers(loaded, "name_capital"))
    pairs = zip(*(answers(results, "choose_capital") for results in (served, loaded)), strict=True)
    for ours, theirs in pairs:
        for (our_sum, our_greedy), (their_sum, their_greedy) in zip(ours, theirs, strict=True):
            assert abs(float(our_sum) - float(their_sum)) < TOLERANCE, (ours, theirs)
            equal(our_greedy, their_greedy)
