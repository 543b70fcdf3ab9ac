"""One architecture against eager transformers in fp32, through the public pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twostroke.bundle import open_bundle
from twostroke.errors import TwostrokeError
from twostroke_export.pipeline import export_all
from twostroke_export.reference import evaluation_text
from twostroke_export.runner import TwoGraphs
from twostroke_export.testing.architectures import Architecture
from twostroke_export.testing.tiny_models import save_tiny_model, tiny_tokenizer

TOLERANCE = 1e-4  # on logits
NUM_PROMPT_TOKENS = 37
NUM_STEPS = 16
CHUNKS = ((0, 16), (16, 17), (17, NUM_PROMPT_TOKENS))
RAGGED_LENGTHS = (5, NUM_PROMPT_TOKENS, 18)
_CAPACITY_TOKENS = 80
Logits = npt.NDArray[np.float32]
Pair = tuple[Logits, Logits]  # mine and theirs, [vocab] each


@dataclass(slots=True)
class Outcome:
    """What was measured of one architecture.

    differences: the largest difference of a logit in each check; num_argmax_different: positions
    whose most likely token differs; refusal: the sentence that refused the export.
    """

    name: str
    note: str = ""
    differences: dict[str, float] = field(default_factory=dict)
    num_argmax_different: int = 0
    refusal: str | None = None

    @property
    def is_match(self) -> bool:
        """True where every check ran and stayed within the tolerance."""
        return (
            self.refusal is None
            and set(self.differences) == set(CHECKS)
            and self.num_argmax_different == 0
            and max(self.differences.values()) < TOLERANCE
        )

    @property
    def result(self) -> str:
        """One of matches, differs, refused."""
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

    def last_logits(self, ids: list[int]) -> Logits:
        """[vocab], after the last of `ids`, computed from all of them without a cache."""
        with torch.no_grad():
            output = self.model(input_ids=torch.tensor([ids]), use_cache=False)
        logits: Logits = output.logits[0, -1].numpy()
        return logits


def check_parity(architecture: Architecture, work: Path) -> Outcome:
    """Exports a tiny model into `work` and measures every check against its source."""
    outcome = Outcome(architecture.name, architecture.note)
    folder = save_tiny_model(
        work / "source", architecture.model_type, **dict(architecture.changes)
    )
    try:
        bundle = export_all(str(folder), {"fp32": work / "bundle"})["fp32"]
    except TwostrokeError as error:
        outcome.refusal = str(error)
        return outcome
    source = EagerSource(folder)
    for name, check in CHECKS.items():
        pairs = list(check(bundle, source))
        outcome.differences[name] = max(float(np.abs(a - b).max()) for a, b in pairs)
        outcome.num_argmax_different += sum(a.argmax() != b.argmax() for a, b in pairs)
    return outcome


def prompt(length: int, start: int = 0) -> list[int]:
    """Ids of English text: random ones may be so unlikely that fp32 itself is ill-conditioned."""
    ids: list[int] = tiny_tokenizer().encode(evaluation_text()).ids
    return ids[start : start + length]


def _prefill(bundle: Path, source: EagerSource) -> Iterator[Pair]:
    ids = prompt(NUM_PROMPT_TOKENS)
    yield _graphs(bundle).prefill([ids])[0], source.last_logits(ids)


def _greedy_steps(bundle: Path, source: EagerSource) -> Iterator[Pair]:
    graphs, ids = _graphs(bundle), prompt(NUM_PROMPT_TOKENS)
    graphs.prefill([ids])
    ids.append(int(source.last_logits(ids).argmax()))
    for _ in range(NUM_STEPS):
        theirs = source.last_logits(ids)
        yield graphs.decode([ids[-1]])[0], theirs
        ids.append(int(theirs.argmax()))


def _chunks(bundle: Path, source: EagerSource) -> Iterator[Pair]:
    graphs, ids = _graphs(bundle), prompt(NUM_PROMPT_TOKENS)
    for start, end in CHUNKS:
        yield graphs.prefill([ids[start:end]])[0], source.last_logits(ids[:end])


def _ragged_rows(bundle: Path, source: EagerSource) -> Iterator[Pair]:
    rows = [prompt(length, 50 * number) for number, length in enumerate(RAGGED_LENGTHS)]
    graphs = _graphs(bundle, len(rows))
    logits = graphs.prefill(rows)
    for _ in range(4):
        for row, mine in zip(rows, logits, strict=True):
            theirs = source.last_logits(row)
            yield mine, theirs
            row.append(int(theirs.argmax()))
        logits = graphs.decode([row[-1] for row in rows])


def _graphs(bundle: Path, num_rows: int = 1) -> TwoGraphs:
    manifest = open_bundle(bundle, check_hashes=False).manifest
    return TwoGraphs(
        bundle,
        manifest.kv_layers,
        manifest.kv_dtype,
        num_rows=num_rows,
        capacity_tokens=_CAPACITY_TOKENS,
    )


CHECKS = {
    "prefill": _prefill,
    "16 steps": _greedy_steps,
    "chunks": _chunks,
    "ragged": _ragged_rows,
}
