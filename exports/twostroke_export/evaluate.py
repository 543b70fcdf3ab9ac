"""Measures bundles on a text of the user's against the source model in fp32, during an export.

As `twostroke evaluate` does it, but the source is the torch model that is in memory anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch

from twostroke.bundle.manifest import Evaluation, Manifest
from twostroke.evaluation import (
    NUM_TOKENS,
    Figures,
    Text,
    Window,
    Yardstick,
    as_evaluation,
    cut,
    measure,
)
from twostroke.evaluation.figures import Logits
from twostroke.text import Tokenizer
from twostroke.types import Stroke
from twostroke_export import assets
from twostroke_export.prepare import Prepared
from twostroke_export.runner import TwoGraphs

_BACKEND = "cpu"  # that of `TwoGraphs`


@dataclass(frozen=True, slots=True)
class Sample:
    """A text, its windows, and what the source model makes of it; holds a file until closed."""

    text: Text
    windows: list[Window]
    yardstick: Yardstick
    figures: Figures
    source: str

    def close(self) -> None:
        """Gives the disk back."""
        self.yardstick.close()


def take_sample(prepared: Prepared, text: Text, on_progress: Callable[[float], None]) -> Sample:
    """Runs the source model over the text, before anything changes its weights.

    Raises:
        RequestError: the text has nothing to predict.
    """
    loaded, vocab_size = prepared.loaded, prepared.loaded.vocab_size
    core = tokenizers.Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
    bos_id = assets.special_ids(prepared.source, loaded).bos_id
    tokenizer = Tokenizer(core, vocab_size=vocab_size, bos_id=bos_id)
    windows = cut(
        tokenizer.encode(text.content, special=False, add_bos=False),
        bos_id=tokenizer.bos_id if tokenizer.adds_bos else None,
        context_tokens=prepared.context_tokens,
        num_tokens=NUM_TOKENS,
    )

    def score(window: Window) -> Iterable[Logits]:
        return [_predictions(loaded.model, window)]

    yardstick = Yardstick(vocab_size)
    try:
        figures = measure(score, windows, keep=yardstick, on_progress=on_progress)
    except BaseException:
        yardstick.close()
        raise
    return Sample(text, windows, yardstick, figures, f"{prepared.source.name} fp32 (transformers)")


def evaluate(
    folder: Path,
    manifest: Manifest,
    sample: Sample,
    on_progress: Callable[[float], None],
    measured_in: str | None = None,
) -> Evaluation:
    """Runs a bundle's default graphs over the sample.

    `folder` holds the graphs, or twins of them that compute in `measured_in` (numpy's name).
    """
    dialect = manifest.dialects[0]
    is_twin = measured_in is not None and manifest.kv_dtype != "int8"
    graphs = TwoGraphs(
        folder,
        manifest.kv_layers,
        measured_in if measured_in is not None and is_twin else manifest.kv_dtype,
        capacity_tokens=max(len(window.ids) for window in sample.windows),
        dialects=dialect,
    )
    prefill, decode = (manifest.graph(stroke, dialect) for stroke in Stroke)
    assert prefill is not None  # the manifest's validator saw to both
    assert decode is not None
    is_alike = prefill.quantisation == decode.quantisation

    def score(window: Window) -> Iterator[Logits]:
        """The context is a prompt; what follows goes through decode where that differs."""
        graphs.lengths = [0]
        ids, start = window.ids, window.num_context
        yield graphs.prefill([ids[:start]])  # [1, vocab]
        if is_alike and start < len(ids) - 1:
            yield graphs.score(ids[start:-1])
        elif not is_alike:
            for token_id in ids[start:-1]:
                yield graphs.decode([token_id])

    figures = measure(score, sample.windows, source=sample.yardstick, on_progress=on_progress)
    source = sample.source, sample.figures.perplexity
    return as_evaluation(sample.text, figures, sample.windows, _BACKEND, source)


def _predictions(model: Any, window: Window) -> Logits:
    """[scored, vocab] float32: what the torch model says before each scored token."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([window.ids]), use_cache=False).logits[0]
    scored: Logits = logits[window.num_context - 1 : -1].float().numpy()
    return scored
