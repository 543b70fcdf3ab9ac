"""Measures a folder's two graphs against the source model, and refuses what does not agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twostroke.bundle.manifest import Dialect, KVLayer, SelfCheck, Verification
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.reference import Reference
from twostroke_export.runner import TwoGraphs

_NUM_TOP = 8
# Mean KL in nats above which a precision is taken for broken rather than lossy.
_MAX_KL = {"fp32": 1e-3, "fp16": 0.05, "int8": 0.2, "int4": 2.0, "mixed": 2.0, "bf16": 0.2}
# Two logits this close are a tie: rounding alone may order them either way.
_TIE = 1e-3
_CHUNK_TOKENS = 128
_NUM_DECODED = 64  # steps of decode over text: enough to tell a broken graph from a lossy one


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures for the manifest, and the prompt that any machine can repeat.

    `decode_kl` is the mean KL of decode's steps over text, in nats.
    """

    verification: Verification
    self_check: SelfCheck
    decode_kl: float = 0.0


@dataclass(frozen=True, slots=True)
class _Agreement:
    """Mean KL(source || export) in nats; the share of positions with the same best token."""

    mean_kl: float
    top1: float


def measure(
    folder: Path,
    layers: Sequence[KVLayer],
    kv_dtype: str,
    reference: Reference,
    on_progress: Callable[[float], None] = lambda _: None,
    dialect: Dialect = "fused",
    *,
    is_pair: bool = False,
) -> Measured:
    """Runs both graphs: the evaluation text, prompt and greedy steps, and a free greedy run.

    Prefill reads the text in chunks; decode goes on behind the prompt for `_NUM_DECODED` tokens of
    it. Where the graphs are a pair of different precisions, decode reads all the rest, and the
    figures are those of the graph that is further off.
    """
    prompt, forced = reference.prompt_ids, reference.greedy_ids
    capacity = max(len(reference.text_ids), len(prompt) + len(forced)) + 1
    graphs = TwoGraphs(folder, layers, kv_dtype, capacity_tokens=capacity, dialects=dialect)
    in_chunks = _over_chunks(graphs, reference, lambda fraction: on_progress(0.4 * fraction))
    graphs.lengths = [0]
    first = graphs.prefill([prompt])[0]
    graphs.close(Stroke.PREFILL)  # its weights, packed for it, would lie beside those of decode
    steps = np.stack([first, *(graphs.decode([i])[0] for i in forced)])
    graphs.lengths = [len(prompt)]
    self_check = _self_check(graphs, prompt, first, len(forced))
    graphs.lengths = [len(prompt)]
    num_tokens = len(reference.text_ids) if is_pair else _NUM_DECODED
    in_steps = _over_steps(
        graphs, reference, num_tokens, lambda fraction: on_progress(0.5 + 0.5 * fraction)
    )
    both = [in_chunks, in_steps or in_chunks] if is_pair else [in_chunks]
    difference = np.abs(steps - reference.step_logits)
    verification = Verification(
        dialect=dialect,
        num_steps=len(steps),
        prefill_max_abs_diff=float(difference[0].max()),
        decode_max_abs_diff=float(difference[1:].max(initial=0.0)),
        num_argmax_equal=int((steps.argmax(-1) == reference.step_logits.argmax(-1)).sum()),
        mean_kl=max(found.mean_kl for found in both),
        top1_agreement=min(found.top1 for found in both),
        num_text_tokens=len(reference.text_ids),
    )
    return Measured(verification, self_check, in_steps.mean_kl if in_steps else 0.0)


def judge(
    name: str,
    precisions: Sequence[str],
    measured: Measured,
    reference: Reference,
    *,
    is_exact: bool = True,
) -> None:
    """Refuses an export that does not compute what its source computes.

    `precisions` are those of the two graphs; `is_exact` is False where something else than they
    makes it lossy, such as an int8 cache.

    Raises:
        ExportError: with the figures.
    """
    figures = measured.verification
    kl = figures.mean_kl if figures.mean_kl is not None else float("inf")
    kl = float(np.max([kl, measured.decode_kl]))  # what is no number stays none
    widest = max(figures.prefill_max_abs_diff, figures.decode_max_abs_diff)
    differs = figures.num_argmax_equal < figures.num_steps and not _only_ties(reference, widest)
    bounds = [_MAX_KL[precision] for precision in (*precisions, *(() if is_exact else ("int8",)))]
    is_exact = is_exact and set(precisions) == {"fp32"}
    label = "/".join(dict.fromkeys(precisions))
    if (is_exact and differs) or not kl <= max(bounds):
        raise ExportError(
            f"The {label} export of {name} does not agree with its source: the most likely token "
            f"is the same in {figures.num_argmax_equal} of {figures.num_steps} steps, logits "
            f"differ by up to {widest:.3g}, mean KL {kl:.3g} nats; nothing was written. "
            f"Please report the architecture."
        )


def _only_ties(reference: Reference, widest: float) -> bool:
    """True where rounding can explain it: small differences, and near-equal best logits."""
    best = np.sort(reference.step_logits, axis=-1)[:, -2:]
    return widest < _TIE and bool((best[:, 1] - best[:, 0]).min() < 2 * widest)


def _over_chunks(
    graphs: TwoGraphs, reference: Reference, on_progress: Callable[[float], None]
) -> _Agreement:
    """Prefill over the whole text in chunks of `_CHUNK_TOKENS`, from an empty cache."""
    ids = reference.text_ids
    rows = []
    for start in range(0, len(ids), _CHUNK_TOKENS):
        mine = graphs.score(ids[start : start + _CHUNK_TOKENS])  # [chunk, vocab]
        rows += _compare(reference.text_logits[start : start + len(mine)], mine)
        on_progress((start + len(mine)) / len(ids))
    return _mean(rows)


def _over_steps(
    graphs: TwoGraphs,
    reference: Reference,
    num_tokens: int,
    on_progress: Callable[[float], None],
) -> _Agreement | None:
    """Decode over the text behind the prompt, which is in the cache; None where the text ends."""
    start = len(reference.prompt_ids)  # the text begins with the prompt
    ids = reference.text_ids[start : start + num_tokens]
    rows = []
    for number, token_id in enumerate(ids):
        theirs = reference.text_logits[start + number]
        rows += _compare(theirs[None], graphs.decode([token_id]))
        on_progress((number + 1) / len(ids))
    return _mean(rows) if rows else None


def _compare(
    theirs: npt.NDArray[np.float32], mine: npt.NDArray[np.float32]
) -> list[tuple[float, bool]]:
    """KL and whether the best token is equal, for each row of logits [tokens, vocab]."""
    same = theirs.argmax(-1) == mine.argmax(-1)
    return [(divergence(p, q), bool(s)) for p, q, s in zip(theirs, mine, same, strict=True)]


def _mean(rows: Sequence[tuple[float, bool]]) -> _Agreement:
    return _Agreement(*(float(value) for value in np.mean(np.array(rows, np.float64), axis=0)))


def divergence(theirs: npt.NDArray[np.float32], mine: npt.NDArray[np.float32]) -> float:
    """KL(softmax(theirs) || softmax(mine)) in nats, in float64."""
    log_p, log_q = _log_softmax(theirs), _log_softmax(mine)
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def _self_check(
    graphs: TwoGraphs, prompt: list[int], first: npt.NDArray[np.float32], num_steps: int
) -> SelfCheck:
    """A greedy run behind the prompt, which is in the cache and was answered with `first`."""
    logits = first
    greedy, margins = [], []
    for _ in range(num_steps):
        second, best = np.sort(logits)[-2:]
        greedy.append(int(logits.argmax()))
        margins.append(float(best - second))
        logits = graphs.decode([greedy[-1]])[0]
    top = np.argsort(-first, kind="stable")[:_NUM_TOP]
    return SelfCheck(
        prompt_ids=tuple(prompt),
        greedy_ids=tuple(greedy),
        greedy_margins=tuple(margins),
        top_ids=tuple(map(int, top)),
        top_logits=tuple(float(first[i]) for i in top),
    )
