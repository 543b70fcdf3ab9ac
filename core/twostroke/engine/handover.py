"""Moves a row's KV cache from the prefill graph's store to the decode graph's."""

from __future__ import annotations

from twostroke.engine.kv_buffers import KVStore
from twostroke.engine.open_graph import OpenGraph
from twostroke.errors import ContractError


def hand_over(
    source: KVStore, target: KVStore, row: int, num_tokens: int, *, target_row: int | None = None
) -> None:
    """Copies the first tokens of a row, once for each layer and side. Mutates `target`'s row.

    Either store may write in place or concatenate. `target_row` None is the same row.
    """
    target.fill_row(row if target_row is None else target_row, source.read_row(row, num_tokens))


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
