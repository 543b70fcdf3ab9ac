"""The cycle of sequences that were asked for together, as one: the choices of an HTTP request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from twostroke.timings import DecodeTimings, HandOverTimings, PrefillTimings, Timings


class Ended(Protocol):
    """A sequence that has ended well: `FinishedEvent`, or what was made of it."""

    @property
    def timings(self) -> Timings:
        """Its cycle."""
        ...

    @property
    def num_completion_tokens(self) -> int:
        """Tokens of the answer, its end included."""
        ...


def together(ends: Sequence[Ended]) -> Timings:
    """What their client saw; of a single sequence, its own timings.

    Up to the first token it is the sequence that told one first; `decode_ms` runs from there to
    the last token of any. Tokens, runs of prefill, hand-overs and `detokenise_ms` are summed.
    Decode runs are shared, so steps and `busy_ms` are those of the sequence with most of them.
    What has no sum (medians, spans of runs, the roofline) is told by each sequence alone.
    """
    if len(ends) == 1:
        return ends[0].timings
    all_timings = [end.timings for end in ends]
    first = min(all_timings, key=lambda each: (each.ttft_ms is None, each.ttft_ms or 0.0))
    lasts = [t.ttft_ms + (t.decode_ms or 0.0) for t in all_timings if t.ttft_ms is not None]
    decode_ms = None if first.ttft_ms is None else max(lasts) - first.ttft_ms
    num_tokens = sum(end.num_completion_tokens for end in ends)
    return replace(
        first,
        decode_ms=decode_ms or None,
        decode_tokens_per_s=(num_tokens - 1) * 1e3 / decode_ms if decode_ms else None,
        detokenise_ms=_sum(each.detokenise_ms for each in all_timings),
        total_ms=max((t.total_ms for t in all_timings if t.total_ms is not None), default=None),
        prefill=_prefill([each.prefill for each in all_timings if each.prefill is not None]),
        decode=_decode([each.decode for each in all_timings if each.decode is not None]),
        hand_over=_hand_over([t.hand_over for t in all_timings if t.hand_over is not None]),
        roofline=None,
    )


def _prefill(parts: Sequence[PrefillTimings]) -> PrefillTimings | None:
    if not parts:
        return None
    return PrefillTimings(
        num_cached_tokens=sum(part.num_cached_tokens for part in parts),
        num_computed_tokens=sum(part.num_computed_tokens for part in parts),
        num_chunks=sum(part.num_chunks for part in parts),
        busy_ms=sum(part.busy_ms for part in parts),
    )


def _decode(parts: Sequence[DecodeTimings]) -> DecodeTimings | None:
    if not parts:
        return None
    longest = max(parts, key=lambda part: part.num_steps)
    return replace(
        longest,
        batch_size_max=max(p.batch_size_max or 0 for p in parts) or None,
        inter_token_p50_ms=None,
        inter_token_max_ms=max(p.inter_token_max_ms or 0.0 for p in parts) or None,
        num_drafted_tokens=sum(part.num_drafted_tokens for part in parts),
        num_accepted_tokens=sum(part.num_accepted_tokens for part in parts),
        steps=(),
    )


def _hand_over(parts: Sequence[HandOverTimings]) -> HandOverTimings | None:
    if not parts:
        return None
    return replace(
        parts[0],
        num_bytes=sum(part.num_bytes for part in parts),
        busy_ms=sum(part.busy_ms for part in parts),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
