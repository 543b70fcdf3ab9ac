"""What the source model itself answers, in fp32: the yardstick of every check."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twostroke_export.load import Loaded

NUM_STEPS = 16
NUM_PROMPT_TOKENS = 37
NUM_TEXT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Reference:
    """Answers of the source model.

    prompt_ids: [prompt]; greedy_ids: [NUM_STEPS], its own greedy continuation; step_logits:
    [1 + NUM_STEPS, vocab], of the prompt's last token and after each greedy id; text_ids [text]
    and text_logits [text, vocab], each row predicting the next token. All logits float32.
    """

    prompt_ids: list[int]
    greedy_ids: list[int]
    step_logits: npt.NDArray[np.float32]
    text_ids: list[int]
    text_logits: npt.NDArray[np.float32]


def evaluation_text() -> str:
    """The plain English prose that every export is measured on."""
    return _packaged("evaluation.txt")


def encode_packaged(loaded: Loaded, name: str, context_tokens: int) -> list[int]:
    """The ids of a packaged text, as many as are measured and fit the context."""
    return _encode(loaded, _packaged(name), context_tokens)


def _packaged(name: str) -> str:
    return resources.files("twostroke_export").joinpath(name).read_text("utf-8")


def measure_reference(loaded: Loaded, context_tokens: int) -> Reference:
    """Runs the source model over the evaluation text and greedily after its beginning."""
    text_ids = encode_packaged(loaded, "evaluation.txt", context_tokens)
    prompt_ids = text_ids[: max(1, min(NUM_PROMPT_TOKENS, context_tokens - NUM_STEPS))]
    text_logits = _logits(loaded.model, text_ids)
    ids, greedy = list(prompt_ids), []
    rows = [_logits(loaded.model, ids)[-1]]
    for _ in range(min(NUM_STEPS, context_tokens - len(prompt_ids))):
        greedy.append(int(rows[-1].argmax()))
        ids.append(greedy[-1])
        rows.append(_logits(loaded.model, ids)[-1])
    return Reference(prompt_ids, greedy, np.stack(rows), text_ids, text_logits)


def _encode(loaded: Loaded, text: str, context_tokens: int) -> list[int]:
    """The text's ids, as many as are measured and fit the context."""
    ids = loaded.tokenizer.backend_tokenizer.encode(text).ids
    ids = [i for i in ids if i < loaded.vocab_size] or [0]
    wanted = min(NUM_TEXT_TOKENS, context_tokens)
    return (ids * (wanted // len(ids) + 1))[:wanted]


def _logits(model: Any, ids: list[int]) -> npt.NDArray[np.float32]:
    """[tokens] -> [tokens, vocab]."""
    positions = torch.arange(len(ids))[None]
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), position_ids=positions, use_cache=False)
    logits: npt.NDArray[np.float32] = output.logits[0].float().numpy()
    return logits
