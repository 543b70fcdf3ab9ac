"""Folders of other tools served as they are: the answers are transformers', whatever is fed.

The folders and their references are described in tests/data/foreign/README.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.bundle import open_foreign
from twostroke.engine.build import open_runner
from twostroke.errors import BundleError, ConfigError
from twostroke.model import Model

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
FP32 = (
    "optimum-llama-past",
    "optimum-gpt2-past",
    "optimum-gpt2-pair",
    "optimum-llama-merged",
    "genai-llama-fp32",
)
INT4 = "genai-llama-int4"
GREEDY = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
Open = Callable[..., Model]


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


@pytest.fixture
def open_folder(plugins: Plugins) -> Iterator[Open]:
    """Opens a folder on the CPU and closes it when the test ends."""
    opened: list[Model] = []

    def open_(name: str | Path, **settings: Any) -> Model:
        settings = {"backend": "cpu", "kv": {"budget": "8MiB"}, "max_rows": 4, **settings}
        opened.append(Model.open(FOREIGN / name, plugins=plugins, **settings))
        return opened[-1]

    yield open_
    for model in opened:
        model.close()


def reference(name: str) -> dict[str, Any]:
    """What transformers answers; for int4 what the tool itself does with the same weights."""
    found: dict[str, Any] = json.loads((FOREIGN / name / "reference.json").read_text())
    return {**found, **found["genai"]} if name == INT4 else found


@pytest.mark.parametrize("name", [*FP32, INT4])
def test_logits_of_the_prompt(name, plugins):
    wanted = reference(name)
    backend = open_backend(plugins, "cpu").backend
    runner = open_runner(
        open_foreign(FOREIGN / name), backend, backend, num_rows=1, context_tokens=64
    )
    logits = runner.prefill(0, 0, wanted["prompt_ids"], is_last=True)
    difference = np.abs(logits[0] - np.array(wanted["logits"])).max()
    runner.close()
    backend.close()
    # Products of int4 weights round their activations to int8, which processors do differently.
    assert difference < (0.05 if name == INT4 else 1e-4)


@pytest.mark.parametrize("chunk_tokens", [256, 4], ids=["whole", "chunks"])
@pytest.mark.parametrize("name", [*FP32, INT4])
def test_greedy_answers(name, chunk_tokens, open_folder):
    wanted = reference(name)
    model = open_folder(name, prefill_chunk_tokens=chunk_tokens)
    assert model.encode(wanted["prompt"]) == tuple(wanted["prompt_ids"])
    answer = model.complete(wanted["prompt"], **GREEDY)
    assert list(answer.token_ids) == wanted["greedy_ids"]


@pytest.mark.parametrize("name", [*FP32, INT4])
def test_three_at_once_answer_as_each_alone(name, open_folder):
    ids = reference(name)["prompt_ids"]
    prompts = [ids, ids[:3], ids * 4]
    model = open_folder(name, prefill_chunk_tokens=8)
    alone = [model.complete(prompt, **GREEDY).token_ids for prompt in prompts]
    begun = [model.generate(prompt, **GREEDY) for prompt in prompts]
    assert [answer.complete().token_ids for answer in begun] == alone
    assert list(alone[0]) == reference(name)["greedy_ids"]


@pytest.mark.parametrize("name", ["optimum-gpt2-pair", "optimum-llama-past", "genai-llama-fp32"])
def test_a_conversation_goes_through_the_template(name, open_folder):
    """In tokenizer_config.json (the first) as well as in a file of its own."""
    model = open_folder(name)
    given = model.encode([{"role": "user", "content": "the engine"}])
    text = "<|im_start|>user\nthe engine<|im_end|>\n<|im_start|>assistant\n"
    assert given == model.encode(text)
    assert model.complete([{"role": "user", "content": "the engine"}], max_tokens=4).token_ids


@pytest.mark.parametrize("name", ["optimum-gpt2-past", "genai-llama-fp32"])
def test_the_context_is_used_to_its_last_token(name, open_folder):
    model = open_folder(name)
    assert model.context_tokens == 256
    answer = model.complete([5] * 250, **{**GREEDY, "max_tokens": 20})
    assert answer.num_prompt_tokens + answer.num_completion_tokens == 256
    assert answer.finish_reason == "length"


def test_more_context_than_the_model_has(open_folder):
    with pytest.raises(ConfigError, match="context_tokens is 512"):
        open_folder("optimum-llama-past", context_tokens=512)


@pytest.mark.parametrize(
    ("name", "origin", "is_alone"),
    [
        ("optimum-llama-past", "optimum's single graph (fp32)", True),
        ("optimum-gpt2-pair", "optimum's pair of graphs (fp32)", True),
        ("genai-llama-int4", "onnxruntime-genai's graph (int4)", False),
    ],
)
def test_the_log_says_what_is_served_and_how(name, origin, is_alone, open_folder, caplog):
    caplog.set_level(logging.INFO, "twostroke")
    open_folder(name)
    (line,) = [text for text in caplog.messages if str(FOREIGN / name) in text]
    assert origin in line
    assert any("one at a time" in text for text in caplog.messages) is is_alone


def test_a_graph_is_served_by_its_file(open_folder):
    model = open_folder("optimum-llama-past/model.onnx")
    wanted = reference("optimum-llama-past")
    assert list(model.complete(wanted["prompt_ids"], **GREEDY).token_ids) == wanted["greedy_ids"]


def test_what_cannot_be_served_is_refused(open_folder):
    with pytest.raises(BundleError, match="keeps no cache"):
        open_folder("optimum-llama-no-past")
