"""When a request must be over, and what it ends with otherwise."""

from __future__ import annotations

from twostroke.engine.sequence import Phase, Sequence
from twostroke.errors import DeadlineError


def earliest_deadline(
    deadline_at: float | None, arrived_at: float, timeout_s: float | None
) -> float | None:
    """The request's own deadline or the engine's, whichever comes first: none can be put off."""
    own = float("inf") if deadline_at is None else deadline_at
    general = float("inf") if timeout_s is None else arrived_at + timeout_s
    earliest = min(own, general)
    return None if earliest == float("inf") else earliest


def deadline_error(sequence: Sequence, phase: Phase) -> DeadlineError:
    """What a sequence ends with whose deadline passed in `phase`."""
    num_tokens = len(sequence.answer_ids)
    where = {
        Phase.WAITING: "while the request waited for a row",
        Phase.PREFILL: "while its prompt was being read",
        Phase.DECODE: f"after {num_tokens} token{'s' if num_tokens != 1 else ''} of the answer",
        Phase.ENDED: "before the request was looked at",
    }[phase]
    return DeadlineError(
        f"The time for this request was up {where}. Ask for fewer tokens, give it more time, or "
        f"try again when the server is less busy."
    )
