"""Where the time of one sequence went, in values that every surface shows under these names.

`docs/timeline.md` has the formula of each; `life.timeline` and `life.roofline` fill them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Preparation:
    """What was done before the engine was given a request; None where it was not needed."""

    template_ms: float | None = None
    tokenise_ms: float | None = None
    constraint_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Neighbouring chunks of a prompt: positions [start, start + num_tokens) in `num_chunks` runs.

    `began_ms` counts from the arrival, `busy_ms` is what the runs took.
    """

    start: int
    num_tokens: int
    num_chunks: int
    began_ms: float
    busy_ms: float


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Neighbouring decode steps: what they took, and how many sequences shared each on average."""

    num_steps: int
    busy_ms: float
    batch_size: float


@dataclass(frozen=True, slots=True)
class PrefillTimings:
    """How a prompt was read; `tokens_per_s` counts what was computed, over `prefill_ms`."""

    num_cached_tokens: int
    num_computed_tokens: int
    num_chunks: int
    busy_ms: float
    tokens_per_s: float | None = None
    chunks: tuple[ChunkSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class HandOverTimings:
    """What of a sequence's KV cache went from one stroke's cache to the other's, and how.

    `busy_ms` is part of the runs and copies that needed it. `way` is a phrase for people.
    """

    num_bytes: int
    busy_ms: float
    way: str


@dataclass(frozen=True, slots=True)
class DecodeTimings:
    """How an answer was made, token by token, after its first.

    `inter_token_p50_ms` is within one per cent of the true median; the maximum is exact.
    """

    num_steps: int
    busy_ms: float
    batch_size_mean: float | None = None
    batch_size_max: int | None = None
    inter_token_p50_ms: float | None = None
    inter_token_max_ms: float | None = None
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    steps: tuple[StepSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class StrokeRoofline:
    """What the runs of one stroke had to read and compute, against what the device can.

    `read_bytes` and `ops` are those of the runs that the sequence took part in, all their rows
    together; `own_read_bytes` is its share: its own cache, and the weights over the batch.
    Fractions are None where the device's limits are not known; above 1 they say that a limit was
    measured too low, or that caches held what was read.
    """

    read_bytes: float
    own_read_bytes: float
    ops: float
    read_bytes_per_s: float
    ops_per_s: float
    fraction_of_bandwidth: float | None = None
    fraction_of_peak: float | None = None
    bound_by: str | None = None  # "bandwidth" or "compute": the larger of the two fractions


@dataclass(frozen=True, slots=True)
class Roofline:
    """Both strokes; `reason` says why something is not known, or is less certain."""

    prefill: StrokeRoofline | None = None
    decode: StrokeRoofline | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """The cycle of one sequence, in milliseconds; None where the stage was never reached.

    `ttft_ms` runs from the arrival of the request to its first token, and is the sum of what stands
    before it and `other_ms` (reading the body, waiting for a thread, choosing the token).
    `decode_ms` runs from the first token to the last. `detokenise_ms` and `blocked_ms` (waiting for
    the client to read) pass while the engine works on. `total_ms` runs from the arrival until the
    end was handed to whoever reads the answer.
    """

    template_ms: float | None = None
    tokenise_ms: float | None = None
    constraint_ms: float | None = None
    queued_ms: float | None = None
    prefill_ms: float | None = None
    other_ms: float | None = None
    ttft_ms: float | None = None
    decode_ms: float | None = None
    decode_tokens_per_s: float | None = None
    detokenise_ms: float | None = None
    blocked_ms: float | None = None
    total_ms: float | None = None
    prefill: PrefillTimings | None = None
    decode: DecodeTimings | None = None
    hand_over: HandOverTimings | None = None  # None: nothing was, as where both share one cache
    roofline: Roofline | None = None

    def stages_ms(self) -> dict[str, float]:
        """The stages that were reached, in order, in milliseconds."""
        known = {name: getattr(self, name) for name in STAGES}
        return {name: value for name, value in known.items() if value is not None}

    def report(self) -> dict[str, object]:
        """What is known, ready for JSON; milliseconds rounded to microseconds."""
        return _known(asdict(self))


STAGES = (
    "template_ms",
    "tokenise_ms",
    "constraint_ms",
    "queued_ms",
    "prefill_ms",
    "other_ms",
    "ttft_ms",
    "decode_ms",
    "detokenise_ms",
    "blocked_ms",
    "total_ms",
)


def _known(values: Mapping[str, object]) -> dict[str, object]:
    """Without what is None; a section of which nothing is known is left out."""
    shown = {name: _shown(name, value) for name, value in values.items()}
    return {name: value for name, value in shown.items() if value is not None}


def _shown(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return _known(value) or None
    if isinstance(value, tuple):
        return [_known(item) for item in value] or None
    if not isinstance(value, float):
        return value
    if name in _WHOLE:
        return round(value)
    return round(value, 4 if name.startswith("fraction") else 3)


_WHOLE = frozenset({"read_bytes", "own_read_bytes", "ops", "read_bytes_per_s", "ops_per_s"})
