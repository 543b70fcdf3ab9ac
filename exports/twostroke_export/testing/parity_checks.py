"""One architecture against eager transformers in fp32, through the public pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import Manifest
from twostroke.errors import TwostrokeError
from twostroke_export.pipeline import export_recipes
from twostroke_export.recipe import Recipe
from twostroke_export.reference import evaluation_text
from twostroke_export.runner import TwoGraphs
from twostroke_export.testing.architectures import Architecture
from twostroke_export.testing.tiny_models import save_tiny_model, tiny_tokenizer

TOLERANCE = 1e-4  # on logits
NUM_PROMPT_TOKENS = 37
NUM_STEPS = 16
CHUNKS = ((0, 16), (16, 17), (17, NUM_PROMPT_TOKENS))
RAGGED_LENGTHS = (5, NUM_PROMPT_TOKENS, 18)
NUM_RAGGED_STEPS = 4
_CAPACITY_TOKENS = 80
Logits = npt.NDArray[np.float32]


@dataclass(slots=True)
class Sequence:
    """A row of tokens and what the graphs answered after some of its positions, [vocab] each."""

    ids: list[int]
    logits: dict[int, Logits] = field(default_factory=dict)

    def answer(self, logits: Logits) -> None:
        """Keeps the logits that follow the last id."""
        self.logits[len(self.ids) - 1] = logits


@dataclass(slots=True)
class Outcome:
    """What was measured of one architecture.

    differences: the largest difference of a logit in each check; num_argmax_different: positions
    whose most likely token differs; refusal: the sentence that refused the export; failure: what
    went wrong in the check itself.
    """

    name: str
    note: str = ""
    differences: dict[str, float] = field(default_factory=dict)
    num_argmax_different: int = 0
    refusal: str | None = None
    failure: str | None = None

    @property
    def is_match(self) -> bool:
        """True where every check ran and stayed within the tolerance."""
        return (
            self.refusal is None
            and self.failure is None
            and set(self.differences) == set(CHECKS)
            and self.num_argmax_different == 0
            and all(widest < TOLERANCE for widest in self.differences.values())
        )

    @property
    def result(self) -> str:
        """One of matches, differs, refused, failed."""
        if self.failure is not None:
            return "failed"
        if self.refusal is not None:
            return "refused"
        return "matches" if self.is_match else "differs"


class EagerSource:
    """The source model in fp32, with transformers' own attention and experts code."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager"
        )
        self.model.eval()

    def logits(self, ids: list[int]) -> Logits:
        """[tokens, vocab]: attention is causal, so row i is what the first i + 1 ids alone give."""
        with torch.no_grad():
            output = self.model(input_ids=torch.tensor([ids]), use_cache=False)
        logits: Logits = output.logits[0].numpy()
        return logits


def check_parity(architecture: Architecture, work: Path) -> Outcome:
    """Exports a tiny model into `work` and measures every check against its source."""
    outcome = Outcome(architecture.name, architecture.note)
    folder = save_tiny_model(work / "source", architecture.model_type, **dict(architecture.changes))
    try:
        bundle = _export(architecture, folder, work / "bundle")
    except TwostrokeError as error:
        outcome.refusal = str(error)
        return outcome
    source = EagerSource(folder)
    for name, check in CHECKS.items():
        _compare(outcome, name, check(bundle), source)
    return outcome


def _export(architecture: Architecture, source: Path, out: Path) -> Path:
    recipe = Recipe("fp32", "fp32", (architecture.dialect,))
    export_recipes(str(source), {out: recipe}, context_tokens=architecture.context_tokens)
    return out


def _compare(outcome: Outcome, check: str, sequences: list[Sequence], source: EagerSource) -> None:
    widest = 0.0
    for sequence in sequences:
        theirs = source.logits(sequence.ids)
        for position, mine in sequence.logits.items():
            # np.maximum keeps a NaN, which max() may drop
            widest = float(np.maximum(widest, np.abs(mine - theirs[position]).max()))
            outcome.num_argmax_different += int(mine.argmax() != theirs[position].argmax())
    outcome.differences[check] = widest


def prompt(length: int, start: int = 0) -> list[int]:
    """Ids of English text: random ones may be so unlikely that fp32 itself is ill-conditioned."""
    ids: list[int] = tiny_tokenizer().encode(evaluation_text()).ids
    return ids[start : start + length]


def _prefill(bundle: Path) -> list[Sequence]:
    sequence = Sequence(prompt(NUM_PROMPT_TOKENS))
    sequence.answer(_graphs(bundle).prefill([sequence.ids])[0])
    return [sequence]


def _greedy_steps(bundle: Path) -> list[Sequence]:
    graphs, sequence = _graphs(bundle), Sequence(prompt(NUM_PROMPT_TOKENS))
    sequence.ids.append(int(graphs.prefill([sequence.ids])[0].argmax()))
    for _ in range(NUM_STEPS):
        logits = graphs.decode([sequence.ids[-1]])[0]
        sequence.answer(logits)
        sequence.ids.append(int(logits.argmax()))
    return [sequence]


def _chunks(bundle: Path) -> list[Sequence]:
    graphs, ids, sequence = _graphs(bundle), prompt(NUM_PROMPT_TOKENS), Sequence([])
    for start, end in CHUNKS:
        sequence.ids += ids[start:end]
        sequence.answer(graphs.prefill([ids[start:end]])[0])
    return [sequence]


def _ragged_rows(bundle: Path) -> list[Sequence]:
    rows = [Sequence(prompt(length, 50 * i)) for i, length in enumerate(RAGGED_LENGTHS)]
    is_together = _manifest(bundle).dialects[0] == "fused"  # others take rows of one length
    for group in [rows] if is_together else [[row] for row in rows]:
        graphs = _graphs(bundle, len(group))
        logits = graphs.prefill([row.ids for row in group])
        for step in range(NUM_RAGGED_STEPS + 1):
            if step:
                logits = graphs.decode([row.ids[-1] for row in group])
            for row, mine in zip(group, logits, strict=True):
                row.answer(mine)
                row.ids.append(int(mine.argmax()))
    return rows


def _graphs(bundle: Path, num_rows: int = 1) -> TwoGraphs:
    manifest = _manifest(bundle)
    return TwoGraphs(
        bundle,
        manifest.kv_layers,
        manifest.kv_dtype,
        num_rows=num_rows,
        capacity_tokens=_CAPACITY_TOKENS,
        dialects=manifest.dialects[0],
    )


def _manifest(bundle: Path) -> Manifest:
    return open_bundle(bundle, check_hashes=False).manifest


CHECKS: dict[str, Callable[[Path], list[Sequence]]] = {
    "prefill": _prefill,
    "16 steps": _greedy_steps,
    "chunks": _chunks,
    "ragged": _ragged_rows,
}
