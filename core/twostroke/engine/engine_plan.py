"""What an engine is planned with: its graphs, its context, its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from twostroke.backends.protocol import Backend
from twostroke.bundle import Bundle
from twostroke.bundle.manifest import GraphFact, Manifest
from twostroke.engine.handover import share_memory
from twostroke.engine.kv_extent import Buckets, Extent
from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS, EngineLimits
from twostroke.errors import ConfigError
from twostroke.life.memory import MemoryPlan, kv_bytes_per_token, kv_capacity, plan_memory
from twostroke.life.needs import engine_needs
from twostroke.life.session_memory import session_memory
from twostroke.types import Stroke

Dialects = Mapping[Stroke, str]


def chosen_graphs(bundle: Bundle, dialects: Dialects) -> dict[Stroke, GraphFact]:
    """The manifest's entry of each stroke's graph.

    Raises:
        BundleError: the bundle lacks a dialect.
    """
    facts = {}
    for stroke in Stroke:
        bundle.graph(stroke, dialects.get(stroke))  # refuses what the manifest does not hold
        fact = bundle.manifest.graph(stroke, dialects.get(stroke))
        assert fact is not None
        facts[stroke] = fact
    return facts


def context_of(manifest: Manifest, limits: EngineLimits) -> int:
    """The context of the sequences: what the limits say, at most the bundle's."""
    context_tokens = limits.context_tokens or manifest.context_tokens
    if context_tokens > manifest.context_tokens:
        raise ConfigError(
            [
                f"context_tokens is {context_tokens}, the bundle {manifest.name!r} was exported "
                f"for {manifest.context_tokens}. Lower it or export with a longer --context."
            ]
        )
    return context_tokens


def with_chunk(limits: EngineLimits, prefill_backend: Backend) -> EngineLimits:
    """The limits with a length of chunks: theirs, else what the backend advises, else ours."""
    advised = prefill_backend.device.prefill_chunk_tokens or DEFAULT_CHUNK_TOKENS
    return replace(limits, prefill_chunk_tokens=limits.prefill_chunk_tokens or advised)


def plan_engine(
    bundle: Bundle,
    prefill_backend: Backend,
    decode_backend: Backend,
    context_tokens: int,
    limits: EngineLimits,
    dialects: Dialects,
) -> MemoryPlan:
    """Weights, workspace and cache: one for both graphs, or one each; see `handover.shares_kv`."""
    prefill, decode = chosen_graphs(bundle, dialects).values()
    is_alike = prefill.dialect == decode.dialect
    shares = is_alike and share_memory(prefill_backend, decode_backend)
    facts = [decode] if shares else [prefill, decode]
    layers = bundle.manifest.kv_layers
    sizes = [kv_bytes_per_token(layers, fact.kv_dtype) for fact in facts]
    spare = [
        size for size, fact in zip(sizes, facts, strict=True) if fact.dialect == "standard"
    ]  # a graph that concatenates writes into one row more than there are
    needs = engine_needs(
        bundle,
        {stroke: bundle.graph(stroke, dialects.get(stroke)) for stroke in Stroke},
        {Stroke.PREFILL: prefill_backend, Stroke.DECODE: decode_backend},
        context_tokens=context_tokens,
        chunk_tokens=limits.prefill_chunk_tokens or DEFAULT_CHUNK_TOKENS,
        num_rows=limits.max_rows,
    )
    kept = sum(
        session_memory(backend).row_copies * kv_bytes_per_token(layers, fact.kv_dtype)
        for backend, fact in ((prefill_backend, prefill), (decode_backend, decode))
        if fact.dialect == "standard"
    )
    needs = replace(needs, kept_bytes=round(kept * kv_capacity(context_tokens)))
    return plan_memory(
        bytes_per_token=sum(sizes),
        context_tokens=context_tokens,
        max_rows=limits.max_rows,
        budget_bytes=limits.kv_budget_bytes,
        touches_lazily=prefill_backend.touches_lazily and decode_backend.touches_lazily,
        spare_bytes_per_token=sum(spare),
        needs=needs,
    )


def buckets_of(plan: MemoryPlan, *, can_shrink: bool = True) -> Buckets | None:
    """The sizes of the KV cache where it takes what is allocated; None where that is free."""
    if plan.touches_lazily:
        return None
    return Buckets(Extent(plan.num_rows, plan.capacity_tokens), can_shrink=can_shrink)


def first_extent(plan: MemoryPlan) -> Extent | None:
    """What the KV cache begins with; None where all of it is free until it is written."""
    buckets = buckets_of(plan)
    return None if buckets is None else buckets.least
