"""The memory plan: what the KV cache may take beside weights and workspace, made before anything is
allocated.

A token takes, over all layers, two sides (key and value) of `num_kv_heads * head_dim` elements:

    bytes per token = sum over layers of 2 * num_kv_heads * head_dim * dtype bytes

(the cache of grouped-query attention, Ainslie et al. 2023). A row holds `kv_capacity(context)`
tokens. Where memory that was never written costs nothing, rows are address space and the budget
counts the tokens that sequences reserve; elsewhere every row is equally long, and there are as many
as fit when all of them are as long as they may become.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.backends.protocol import dtype_bytes
from twostroke.bundle.manifest import KVLayer
from twostroke.errors import OutOfMemoryError
from twostroke.life.free_memory import free_memory_bytes
from twostroke.life.needs import Needs

__all__ = [
    "MemoryPlan",
    "free_memory_bytes",
    "kv_bytes_per_token",
    "kv_capacity",
    "plan_memory",
]


NOTHING = Needs()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How many rows the KV cache gets and how many tokens they may hold together.

    `kv_bytes` is the most the cache may ever take: what sequences can reserve where untouched
    memory is free, all rows at their longest elsewhere. `needs` is what is taken beside it.
    """

    num_rows: int
    capacity_tokens: int  # of one row, a little more than the context
    kv_bytes_per_token: int
    kv_tokens_total: int
    budget_bytes: int
    spare_bytes: int = 0  # buffers beyond the rows'
    needs: Needs = NOTHING
    touches_lazily: bool = True

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache when it is full."""
        return self.kv_tokens_total * self.kv_bytes_per_token + self.spare_bytes

    @property
    def total_bytes(self) -> int:
        """The most that weights, workspace and a full cache take."""
        return self.needs.num_bytes + self.kv_bytes

    def bytes_now(self, touched_tokens: int, spare_tokens: int = 0, longest_tokens: int = 0) -> int:
        """What is taken where memory for `touched_tokens` of cache is, and none is scored.

        `spare_tokens`: what a spare row has memory for, where there is one; `longest_tokens`: of
        the longest row that was ever run, which sessions may keep copies of. Tables that are mapped
        are left out: only what tokens asked for of them is in memory.
        """
        needs = self.needs
        at_times = needs.scoring_bytes + needs.kept_bytes + needs.mapped_table_bytes
        kept = needs.kept_bytes * min(longest_tokens, self.capacity_tokens)
        kv_bytes = self.kv_bytes_now(touched_tokens, spare_tokens)
        return needs.num_bytes - at_times + kept // self.capacity_tokens + kv_bytes

    def kv_bytes_now(self, touched_tokens: int, spare_tokens: int = 0) -> int:
        """What of that is the cache."""
        spare_bytes = min(spare_tokens, self.capacity_tokens) * self.spare_bytes
        touched_bytes = touched_tokens * self.kv_bytes_per_token
        touched_bytes += spare_bytes // self.capacity_tokens
        return min(touched_bytes, self.kv_bytes)


def kv_capacity(context_tokens: int) -> int:
    """Tokens a row is allocated for: one more than the context, rounded up to a multiple of 8."""
    return -(-(context_tokens + 1) // 8) * 8


def kv_bytes_per_token(layers: Sequence[KVLayer], dtype: str) -> int:
    """Bytes that one token takes in the cache of all layers, keys and values."""
    elements = sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers)
    return elements * dtype_bytes(dtype)


def plan_memory(
    *,
    bytes_per_token: int,
    context_tokens: int,
    max_rows: int,
    budget_bytes: int | None,
    touches_lazily: bool,
    spare_bytes_per_token: int = 0,
    needs: Needs = NOTHING,
) -> MemoryPlan:
    """Rows and tokens that fit `budget_bytes`; None: what `needs` leave of the free memory.

    `spare_bytes_per_token` is for one row more than there are sequences, which a graph that
    answers a new cache for each one it is given writes into.

    Raises:
        OutOfMemoryError: not even one row of the whole context fits, in the budget or beside
            `needs` in the free memory; the message has all numbers and says which context would.
    """
    if budget_bytes is None:
        budget_bytes = needs.left_bytes
    capacity = kv_capacity(context_tokens)
    spare_bytes = capacity * spare_bytes_per_token
    tokens_in_budget = max(0, budget_bytes - spare_bytes) // bytes_per_token
    needed_bytes = bytes_per_token + spare_bytes_per_token
    if tokens_in_budget < capacity:
        fits = budget_bytes // needed_bytes // 8 * 8 - 1
        smaller = f" or set context_tokens to {fits} or less" if fits > 1 else ""
        raise OutOfMemoryError(
            f"The KV cache of one sequence of {context_tokens} tokens takes "
            f"{_size(capacity * needed_bytes)}, the budget is {_size(budget_bytes)}"
            f"{_beside(needs)}. Raise kv.budget{smaller}."
        )
    least_bytes = needs.num_bytes + capacity * needed_bytes
    if needs.free_bytes is not None and least_bytes > needs.free_bytes:
        raise OutOfMemoryError(
            f"The KV cache of one sequence of {context_tokens} tokens takes "
            f"{_size(capacity * needed_bytes)}{_beside(needs)}: together "
            f"{_size(least_bytes)}. Free some memory, lower context_tokens or "
            f"prefill_chunk_tokens, or export the model in a smaller precision."
        )
    if touches_lazily:
        num_rows = max_rows
        kv_tokens_total = min(tokens_in_budget, max_rows * capacity)
    else:
        num_rows = min(max_rows, tokens_in_budget // capacity)
        kv_tokens_total = num_rows * capacity
    return MemoryPlan(
        num_rows,
        capacity,
        bytes_per_token,
        kv_tokens_total,
        budget_bytes,
        spare_bytes,
        needs,
        touches_lazily,
    )


def _beside(needs: Needs) -> str:
    if needs.free_bytes is None:
        return ""
    return (
        f", beside {_size(needs.weights_bytes)} of weights and {_size(needs.workspace_bytes)} of "
        f"workspace in {_size(needs.free_bytes)} of free memory"
        f"{f' ({needs.free_source})' if needs.free_source else ''}"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"
