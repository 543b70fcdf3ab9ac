"""What `twostroke export` prints of a bundle that it made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli.progress import size
from twostroke.types import Stroke

if TYPE_CHECKING:
    from twostroke.bundle.manifest import Manifest


def summary(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What was made, how large it is, how near to its source, and what to do with it."""
    from twostroke.bundle.quality import quality_note

    shape = manifest.architecture
    total = sum(fact.num_bytes for fact in manifest.files.values())
    yield (
        f"{folder}: {manifest.name}, {shape.model_type} with {_count(shape.num_parameters)} "
        f"parameters, {manifest.precision}, context {manifest.context_tokens} tokens, "
        f"{size(total)}"
    )
    largest = sorted(manifest.files.items(), key=lambda item: -item[1].num_bytes)[:4]
    yield from _strokes(manifest)
    yield "  files: " + ", ".join(f"{name} {size(fact.num_bytes)}" for name, fact in largest)
    verification = manifest.verification
    if verification is not None:
        yield (
            f"  against the source: same token in {verification.num_argmax_equal} of "
            f"{verification.num_steps} steps; largest difference of a logit "
            f"{verification.prefill_max_abs_diff:.2g} (prefill), "
            f"{verification.decode_max_abs_diff:.2g} (decode)"
        )
        if verification.mean_kl is not None and verification.top1_agreement is not None:
            yield (
                f"  on {verification.num_text_tokens} tokens of text: same token at "
                f"{verification.top1_agreement:.1%} of the positions, "
                f"KL divergence {verification.mean_kl:.2g}"
            )
    yield from _evaluations(manifest)
    note = quality_note(manifest)
    if note is not None:
        yield f"  note: {note}"
    yield f'  try: twostroke generate --model {folder} "Once upon a time"'


def _strokes(manifest: Manifest) -> Iterator[str]:
    """What each stroke's weights take, where the two differ."""
    graphs = [manifest.graph(stroke) for stroke in Stroke]
    told = [
        (f"{graph.stroke} {graph.quantisation.precision}", graph.weight_bytes)
        for graph in graphs
        if graph is not None and graph.weight_bytes is not None
    ]
    shared = graphs[0].shared_weight_bytes if graphs[0] is not None else None
    if shared is None or len(told) < len(graphs) or "/" not in manifest.precision:
        return
    total = sum(num_bytes for _, num_bytes in told) - shared
    each = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in told)
    yield f"  weights: {each}, {size(shared)} of them shared: {size(total)} in memory"


def _evaluations(manifest: Manifest) -> Iterator[str]:
    for found in manifest.evaluations:
        line = f"  on {found.num_tokens} tokens of {found.text}: perplexity {found.perplexity:.2f}"
        if found.source_perplexity is not None:
            line += f" (source {found.source_perplexity:.2f})"
        if found.mean_kl is not None and found.top1_agreement is not None:
            line += f", same token {found.top1_agreement:.1%}, KL divergence {found.mean_kl:.2g}"
        yield line


def _count(number: int) -> str:
    for power, unit in ((9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {unit}"
    return str(number)
