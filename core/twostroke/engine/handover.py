"""Moves a row's KV cache from one graph's store to the other's, by the cheapest way there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twostroke.backends.capabilities import HOST_MEMORY, SharesMemory
from twostroke.backends.protocol import Array, Backend
from twostroke.engine.kv_buffers import KVStore
from twostroke.engine.open_graph import OpenGraph
from twostroke.errors import ContractError

SHARED = "shared"
"""Both graphs work on one cache: nothing is handed over."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """What was handed over between two caches, in how long. `way` is a phrase for people."""

    num_bytes: int
    seconds: float
    way: str


def hand_over(
    source: KVStore, target: KVStore, row: int, num_tokens: int, *, target_row: int | None = None
) -> int:
    """Copies the first tokens of a row, once for each layer and side. Mutates `target`'s row.

    Either store may write in place or concatenate. `target_row` None is the same row. Answers the
    bytes that were copied.
    """
    num_bytes = 0

    def counted() -> Iterator[tuple[str, Array]]:
        nonlocal num_bytes
        for name, tokens in source.read_row(row, num_tokens):  # [1, kv_heads, tokens, head_dim]
            num_bytes += tokens.nbytes
            yield name, tokens

    target.fill_row(row if target_row is None else target_row, counted())
    return num_bytes


def share_memory(own: Backend, other: Backend) -> bool:
    """Whether one KV cache can be bound to sessions of both backends."""
    if own is other:
        return True
    space = _memory_space(own)
    is_same = space is not None and space == _memory_space(other)
    return is_same and own.has_row_views == other.has_row_views


def shares_kv(prefill: OpenGraph, decode: OpenGraph) -> bool:
    """Whether both graphs work on one KV cache: it has one layout and memory that both can bind."""
    is_alike = prefill.is_concatenating == decode.is_concatenating
    return is_alike and share_memory(prefill.backend, decode.backend)


def hand_over_way(prefill: OpenGraph, decode: OpenGraph) -> str:
    """How a row gets from one graph's cache to the other's."""
    if shares_kv(prefill, decode):
        return SHARED
    spaces = {_memory_space(graph.backend) for graph in (prefill, decode)}
    if spaces == {HOST_MEMORY}:
        return "one copy in host memory"
    if HOST_MEMORY in spaces:
        return "one copy between host and device"
    return "a copy between two caches"


def _memory_space(backend: Backend) -> str | None:
    return backend.memory_space if isinstance(backend, SharesMemory) else None


def check_hand_over(prefill: OpenGraph, decode: OpenGraph) -> None:
    """Refuses two graphs whose caches hold different numbers.

    Raises:
        ContractError: names both dtypes.
    """
    if prefill.kv_dtype != decode.kv_dtype:
        raise ContractError(
            f"{prefill.name} keeps its KV cache in {prefill.kv_dtype}, {decode.name} in "
            f"{decode.kv_dtype}: what one has read the other cannot go on with. Export both with "
            f"the same --activations and --kv-dtype."
        )
