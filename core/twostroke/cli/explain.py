"""`twostroke generate --explain`: where the time and the memory of one answer went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twostroke.cli.progress import size

if TYPE_CHECKING:
    from twostroke.model import Completion
    from twostroke.timings import (
        DecodeTimings,
        HandOverTimings,
        PrefillTimings,
        StrokeRoofline,
        Timings,
    )

_BAR_COLUMNS = 20
_LABELS = {
    "template_ms": "template",
    "tokenise_ms": "tokenise",
    "constraint_ms": "constraint",
    "queued_ms": "queued",
    "prefill_ms": "prefill",
    "other_ms": "other",
    "ttft_ms": "first token",
    "decode_ms": "decode",
    "detokenise_ms": "detokenise",
    "blocked_ms": "blocked",
    "total_ms": "total",
}


def explain(completions: Sequence[Completion], status: Mapping[str, Any]) -> Iterator[str]:
    """The cycle of an answer as a table, a line each; `status` is `Model.status()`.

    Of several choices it is the cycle of all together, and a line for each follows.

    A bar is as long as its stage's share of the total. `detokenise` and `blocked` pass beside the
    others; `first token` is the sum of what stands before it.
    """
    from twostroke.life.together import together

    timings = together(completions)
    stages = timings.stages_ms()
    total_ms = timings.total_ms or max(stages.values(), default=0.0)
    notes = _notes(timings, completions)
    for name, ms in stages.items():
        bar = _bar(ms / total_ms if total_ms else 0.0)
        lines = notes.get(name, [])
        first = f"  {lines[0]}" if lines else ""
        yield f"{_LABELS[name]:<12}{ms:>10.1f} ms  {bar}{first}".rstrip()
        for line in lines[1:]:
            yield " " * (27 + _BAR_COLUMNS) + f"  {line}".rstrip()
    if len(completions) > 1:
        yield from (_choice(index, each) for index, each in enumerate(completions))
    yield from _memory(status["memory"])
    if timings.roofline is not None and timings.roofline.reason:
        yield f"note: {timings.roofline.reason}"


def _choice(index: int, completion: Completion) -> str:
    timings = completion.timings
    first = f", first at {timings.ttft_ms:.1f} ms" if timings.ttft_ms is not None else ""
    rate = timings.decode_tokens_per_s
    told = f"{completion.num_completion_tokens} tokens ({completion.finish_reason}){first}"
    return f"{f'choice {index}':<12}{told}{f', {rate:.1f} tokens/s' if rate else ''}"


def _notes(timings: Timings, completions: Sequence[Completion]) -> dict[str, list[str]]:
    """What is told beside a stage."""
    roofline = timings.roofline
    notes: dict[str, list[str]] = {}
    if timings.prefill is not None:
        notes["prefill_ms"] = [*_prefill(timings.prefill)]
        if roofline is not None and roofline.prefill is not None:
            notes["prefill_ms"].append(_reached(roofline.prefill))
    if timings.hand_over is not None:
        notes.setdefault("prefill_ms", []).append(_handed_over(timings.hand_over))
    if timings.decode is not None:
        notes["decode_ms"] = [*_decode(timings.decode, timings.decode_tokens_per_s)]
        if roofline is not None and roofline.decode is not None:
            notes["decode_ms"].append(_reached(roofline.decode))
            own_bytes = roofline.decode.own_read_bytes / timings.decode.num_steps
            notes["decode_ms"].append(f"{size(round(own_bytes))} read a step")
    num_tokens = sum(each.num_completion_tokens for each in completions)
    notes["total_ms"] = [
        f"{completions[0].num_prompt_tokens} prompt tokens, {num_tokens} tokens "
        f"({', '.join(each.finish_reason for each in completions)})"
    ]
    return notes


def _prefill(prefill: PrefillTimings) -> Iterator[str]:
    cached = f", {prefill.num_cached_tokens} cached" if prefill.num_cached_tokens else ""
    rate = f", {prefill.tokens_per_s:.0f} tokens/s" if prefill.tokens_per_s else ""
    chunks = _count(prefill.num_chunks, "chunk")
    yield f"{prefill.num_computed_tokens} tokens in {chunks}{cached}{rate}"
    if len(prefill.chunks) > 1:
        yield "each " + ", ".join(f"{chunk.busy_ms:.0f}" for chunk in prefill.chunks) + " ms"


def _handed_over(moved: HandOverTimings) -> str:
    return f"{size(moved.num_bytes)} handed over in {moved.busy_ms:.1f} ms: {moved.way}"


def _decode(decode: DecodeTimings, tokens_per_s: float | None) -> Iterator[str]:
    rate = f", {tokens_per_s:.1f} tokens/s" if tokens_per_s else ""
    yield f"{_count(decode.num_steps, 'step')}{rate}{_of_gaps(decode)}"
    if decode.batch_size_max is not None and decode.batch_size_max > 1:
        yield (
            f"shared by {decode.batch_size_mean:.1f} sequences on average, "
            f"{decode.batch_size_max} at most"
        )
    if decode.num_drafted_tokens:
        yield f"{decode.num_accepted_tokens} of {decode.num_drafted_tokens} drafted tokens accepted"


def _of_gaps(decode: DecodeTimings) -> str:
    if decode.inter_token_p50_ms is None or decode.inter_token_max_ms is None:
        return ""
    return (
        f", {decode.inter_token_p50_ms:.1f} ms a token (p50), {decode.inter_token_max_ms:.1f} at "
        "most"
    )


def _reached(roofline: StrokeRoofline) -> str:
    """E.g. `31 % of bandwidth (7.4 GB/s), 4 % of peak (61 GOP/s): bound by bandwidth`."""
    read = f"{roofline.read_bytes_per_s / 1e9:.3g} GB/s"
    done = f"{roofline.ops_per_s / 1e9:.3g} GOP/s"
    if roofline.fraction_of_bandwidth is not None:
        read = f"{roofline.fraction_of_bandwidth:.0%} of bandwidth ({read})".replace("%", " %")
    if roofline.fraction_of_peak is not None:
        done = f"{roofline.fraction_of_peak:.0%} of peak ({done})".replace("%", " %")
    bound = f": bound by {roofline.bound_by}" if roofline.bound_by else ""
    return f"{read}, {done}{bound}"


def _memory(memory: Mapping[str, int]) -> Iterator[str]:
    spare_bytes = memory.get("kv_spare_bytes", 0)
    spare = f", {size(spare_bytes)} in a spare row" if spare_bytes else ""
    used_bytes = memory["kv_now_bytes"] - spare_bytes
    yield (
        f"memory      {size(memory['weights_bytes'])} weights, {size(used_bytes)} of "
        f"{size(memory['kv_bytes'])} KV cache ({size(memory['kv_bytes_per_token'])} a token{spare})"
        f", up to {size(memory['workspace_bytes'])} workspace"
    )


def _bar(share: float) -> str:
    """Eighths of a column, so that small stages show."""
    eighths = round(min(max(share, 0.0), 1.0) * _BAR_COLUMNS * 8)
    full, rest = divmod(eighths, 8)
    partial = " ▏▎▍▌▋▊▉"[rest] if rest else ""
    return f"{'█' * full}{partial}".ljust(_BAR_COLUMNS)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
