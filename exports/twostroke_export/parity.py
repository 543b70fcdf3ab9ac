"""Measures a folder's two graphs against the source model, and refuses what does not agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twostroke.bundle.manifest import Dialect, KVLayer, SelfCheck, Verification
from twostroke.errors import ExportError
from twostroke_export.reference import Reference
from twostroke_export.runner import TwoGraphs

_NUM_TOP = 8
# Mean KL in nats above which a precision is taken for broken rather than lossy.
_MAX_KL = {"fp32": 1e-3, "fp16": 0.05, "int8": 0.2, "int4": 2.0, "mixed": 2.0, "bf16": 0.2}
# Two logits this close are a tie: rounding alone may order them either way.
_TIE = 1e-3
_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures for the manifest, and the prompt that any machine can repeat."""

    verification: Verification
    self_check: SelfCheck


def measure(
    folder: Path,
    layers: Sequence[KVLayer],
    kv_dtype: str,
    reference: Reference,
    on_progress: Callable[[float], None] = lambda _: None,
    dialect: Dialect = "fused",
) -> Measured:
    """Runs both graphs: prompt and greedy steps, the evaluation text, and a free greedy run.

    The text is fed token by token in the fused dialect, in chunks in the standard one.
    """
    prompt, forced = reference.prompt_ids, reference.greedy_ids
    capacity = max(len(reference.text_ids), len(prompt) + len(forced)) + 1
    graphs = TwoGraphs(folder, layers, kv_dtype, capacity_tokens=capacity, dialects=dialect)
    rows = [graphs.prefill([prompt])[0], *(graphs.decode([i])[0] for i in forced)]
    steps = np.stack(rows)
    difference = np.abs(steps - reference.step_logits)
    is_equal = [
        int(mine.argmax()) == int(theirs.argmax())
        for mine, theirs in zip(steps, reference.step_logits, strict=True)
    ]
    over_text = _over_text if dialect == "fused" else _over_chunks
    mean_kl, top1 = over_text(graphs, reference, on_progress)
    verification = Verification(
        dialect=dialect,
        num_steps=len(is_equal),
        prefill_max_abs_diff=float(difference[0].max()),
        decode_max_abs_diff=float(difference[1:].max(initial=0.0)),
        num_argmax_equal=sum(is_equal),
        mean_kl=mean_kl,
        top1_agreement=top1,
        num_text_tokens=len(reference.text_ids),
    )
    return Measured(verification, _self_check(graphs, prompt, len(forced)))


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


def _over_text(
    graphs: TwoGraphs, reference: Reference, on_progress: Callable[[float], None]
) -> tuple[float, float]:
    """Mean KL(source || export) in nats and top-1 agreement, feeding the text token by token."""
    ids = reference.text_ids
    graphs.lengths = [0]
    logits = graphs.prefill([ids[:1]])[0]
    divergences, num_same = [], 0
    for position, theirs in enumerate(reference.text_logits):
        if position:
            logits = graphs.decode([ids[position]])[0]
        divergences.append(divergence(theirs, logits))
        num_same += int(theirs.argmax() == logits.argmax())
        on_progress(position / len(ids))
    return float(np.mean(divergences)), num_same / len(ids)


def _over_chunks(
    graphs: TwoGraphs, reference: Reference, on_progress: Callable[[float], None]
) -> tuple[float, float]:
    """The same, feeding the text in chunks of `_CHUNK_TOKENS`."""
    ids = reference.text_ids
    graphs.lengths = [0]
    divergences, num_same = [], 0
    for start in range(0, len(ids), _CHUNK_TOKENS):
        mine = graphs.score(ids[start : start + _CHUNK_TOKENS])  # [chunk, vocab]
        theirs = reference.text_logits[start : start + len(mine)]
        divergences += [divergence(*pair) for pair in zip(theirs, mine, strict=True)]
        num_same += int((theirs.argmax(-1) == mine.argmax(-1)).sum())
        on_progress(start / len(ids))
    return float(np.mean(divergences)), num_same / len(ids)


def divergence(theirs: npt.NDArray[np.float32], mine: npt.NDArray[np.float32]) -> float:
    """KL(softmax(theirs) || softmax(mine)) in nats, in float64."""
    log_p, log_q = _log_softmax(theirs), _log_softmax(mine)
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def _self_check(graphs: TwoGraphs, prompt: list[int], num_steps: int) -> SelfCheck:
    graphs.lengths = [0]
    first = logits = graphs.prefill([prompt])[0]
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
