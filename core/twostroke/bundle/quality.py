"""Says when a bundle is far from its source, so that nobody takes a bad export for a bad model."""

from __future__ import annotations

from twostroke.bundle.manifest import Manifest

LOSSY_KL = 0.05  # nats; int8 stays below 0.01, text goes astray above 0.1
LOSSY_TOP1 = 0.9
_CLOSER = {
    "int4": "mixed and int8 stay closer to it",
    "mixed": "int8, or a smaller --mixed-kl, stays closer to it",
}


def quality_note(manifest: Manifest) -> str | None:
    """One sentence where quantisation has cost much of the model's quality; None elsewhere."""
    measured = manifest.verification
    if measured is None or measured.mean_kl is None or measured.top1_agreement is None:
        return None
    if measured.mean_kl <= LOSSY_KL and measured.top1_agreement >= LOSSY_TOP1:
        return None
    precision = manifest.precision
    return (
        f"{precision} costs this model a lot: it agrees with its source at "
        f"{measured.top1_agreement:.0%} of the positions (KL divergence {measured.mean_kl:.2g}); "
        f"{_CLOSER.get(manifest.quantisation.precision, 'fp32 is exact')}"
    )
