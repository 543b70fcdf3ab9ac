"""Will a model fit, and how fast can it be: memory and the bounds of the roofline.

    decode    rows / ((weights read + rows * cache read) / bandwidth)      tokens a second
    prefill   operations of the prompt / peak                              seconds

Both are bounds (Williams, Waterman and Patterson, "Roofline", 2009): nothing is faster, and how
near one comes is what a measurement tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twostroke.life.limits import DeviceLimits
from twostroke.life.memory import kv_capacity
from twostroke.life.subject import Subject
from twostroke.life.workspace import Workspace, plan_workspace

PROCESS_BYTES = 80 * 2**20  # Python, its packages and the tokenizer, before a model is loaded
PROMPT_TOKENS = 512  # of the prompt whose prefill is told


@dataclass(frozen=True, slots=True)
class Forecast:
    """The plan of `num_rows` sequences of `context_tokens` on a device with `memory_bytes`.

    `memory_bytes` None: not known, everything fits. `keeps_scores`: see `plan_workspace`.
    """

    subject: Subject
    context_tokens: int
    num_rows: int
    memory_bytes: int | None
    limits: DeviceLimits
    chunk_tokens: int
    keeps_scores: bool

    @property
    def row_bytes(self) -> int:
        """The cache of one sequence of the whole context."""
        return self.subject.kv_bytes_per_token * kv_capacity(self.context_tokens)

    @property
    def kv_bytes(self) -> int:
        """The cache of all rows."""
        return self.row_bytes * self.num_rows

    @property
    def workspace(self) -> Workspace:
        """What runs take beside weights and cache."""
        return self._workspace(self.context_tokens, self.num_rows)

    @property
    def total_bytes(self) -> int:
        """Weights, cache and workspace, and the process around them."""
        return self._total(self.context_tokens, self.num_rows)

    @property
    def fits(self) -> bool:
        """Whether all of it is had at once."""
        return self._fits(self.context_tokens, self.num_rows)

    @property
    def longest_context_tokens(self) -> int:
        """The longest context of which `num_rows` fit; 0 where none does."""
        return _largest(lambda n: self._fits(n, self.num_rows), self.subject.context_tokens)

    @property
    def most_rows(self) -> int:
        """How many sequences of the whole context fit, up to 1,024; 0 where none does."""
        return _largest(lambda n: self._fits(self.context_tokens, n), 1024)

    def decode_tokens_per_s(self, num_rows: int, num_tokens: int) -> float | None:
        """Of all rows together, each holding `num_tokens`; at most. None: bandwidth unknown."""
        if not self.limits.read_bytes_per_s:
            return None
        cache = num_rows * self.subject.kv_read_bytes(num_tokens)
        step_bytes = self.subject.weights.read_bytes(num_rows) + cache
        return num_rows * self.limits.read_bytes_per_s / step_bytes

    def prefill_s(self, num_tokens: int) -> float | None:
        """Seconds that reading a prompt takes at least. None: peak unknown."""
        peak = self.limits.ops_per_s(self.subject.precision.partition("/")[0])
        return self.subject.prefill_ops(num_tokens) / peak if peak else None

    def report(self) -> dict[str, Any]:
        """Every number. Ready for JSON."""
        subject, work = self.subject, self.workspace
        prompt = min(PROMPT_TOKENS, self.context_tokens)
        return {
            "name": subject.name,
            "model_type": subject.model_type,
            "precision": subject.precision,
            "num_parameters": subject.num_parameters,
            "num_active_parameters": subject.weights.num_active,
            "context_tokens": self.context_tokens,
            "num_rows": self.num_rows,
            "disk_bytes": subject.stored_bytes,
            "weights_bytes": subject.loaded_bytes,
            "kv_dtype": subject.kv_dtype,
            "kv_bytes_per_token": subject.kv_bytes_per_token,
            "kv_bytes_per_row": self.row_bytes,
            "kv_bytes": self.kv_bytes,
            "workspace_bytes": work.num_bytes,
            "scores_bytes": work.scores_bytes,
            "process_bytes": PROCESS_BYTES,
            "total_bytes": self.total_bytes,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "longest_context_tokens": self.longest_context_tokens,
            "most_rows": self.most_rows,
            "decode_tokens_per_s": self.decode_tokens_per_s(1, 1),
            "decode_tokens_per_s_full": self.decode_tokens_per_s(1, self.context_tokens),
            "decode_tokens_per_s_all_rows": self.decode_tokens_per_s(self.num_rows, 1),
            "prefill_tokens": prompt,
            "prefill_s": self.prefill_s(prompt),
            "prefill_s_full": self.prefill_s(self.context_tokens),
            "read_bytes_per_s": self.limits.read_bytes_per_s,
            "fp32_ops_per_s": self.limits.fp32_ops_per_s,
            "int8_ops_per_s": self.limits.int8_ops_per_s,
        }

    def _workspace(self, context_tokens: int, num_rows: int) -> Workspace:
        subject = self.subject
        return plan_workspace(
            hidden_size=subject.hidden_size,
            widest=subject.widest,
            num_heads=subject.num_heads,
            vocab_size=subject.vocab_size,
            chunk_tokens=self.chunk_tokens,
            context_tokens=context_tokens,
            num_rows=num_rows,
            keeps_scores=self.keeps_scores,
        )

    def _total(self, context_tokens: int, num_rows: int) -> int:
        kv = self.subject.kv_bytes_per_token * kv_capacity(context_tokens) * num_rows
        work = self._workspace(context_tokens, num_rows).num_bytes
        return PROCESS_BYTES + self.subject.loaded_bytes + kv + work

    def _fits(self, context_tokens: int, num_rows: int) -> bool:
        total = self._total(context_tokens, num_rows)
        return self.memory_bytes is None or total <= self.memory_bytes


def _largest(is_possible: Callable[[int], bool], highest: int) -> int:
    """The largest number up to `highest` that is possible, where smaller ones are as well."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_possible(middle) else (low, middle - 1)
    return low
