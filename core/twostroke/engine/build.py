"""Builds an engine: memory plan, sessions, contract, buffers, in this order."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from twostroke.backends.protocol import Backend
from twostroke.bundle import Bundle
from twostroke.bundle.manifest import GraphFact, Manifest
from twostroke.engine.chunk_probe import settle_chunks
from twostroke.engine.engine import Engine
from twostroke.engine.exactness import open_speculation, reuses_answers
from twostroke.engine.handover import share_memory
from twostroke.engine.intake import IDLE_AFTER_S
from twostroke.engine.kv_cache import KVCache
from twostroke.engine.kv_extent import Buckets, Extent
from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS, EngineLimits
from twostroke.engine.open_graph import OpenGraph, open_graph
from twostroke.engine.open_store import open_store
from twostroke.engine.rebuild import Rebuild, ReopenBackends
from twostroke.engine.runner import Runner
from twostroke.engine.scheduler import Scheduler
from twostroke.errors import ConfigError
from twostroke.grammar import Grammars
from twostroke.life.memory import (
    MemoryPlan,
    kv_bytes_per_token,
    kv_capacity,
    plan_memory,
)
from twostroke.life.needs import engine_needs
from twostroke.life.roofline import engine_bounds
from twostroke.life.timeline import Clock
from twostroke.types import Stroke

log = logging.getLogger(__name__)
Dialects = Mapping[Stroke, str]


def build_engine(
    bundle: Bundle,
    prefill_backend: Backend,
    decode_backend: Backend,
    limits: EngineLimits,
    *,
    dialects: Dialects | None = None,
    idle_after_s: float = IDLE_AFTER_S,
    clock: Clock = time.monotonic,
    reopen_backends: ReopenBackends | None = None,
) -> Engine:
    """An engine that is ready to `start`. The backends stay the caller's to close.

    `dialects` says which graph of the bundle each stroke takes; None: the bundle's default. After
    `idle_after_s` without work the memory of rows that ended goes back to the system. Where the
    sessions are lost, new ones are opened on the same backends, or on those of `reopen_backends`.

    Raises:
        ConfigError: a context longer than the bundle's, or speculation that is on and cannot be.
        OutOfMemoryError: not one row fits the KV budget, or the free memory beside the weights.
        ContractError: a graph that the engine cannot feed, or two that cannot go on with each
            other's cache.
        PlacementError, BundleError: from the backends, or a dialect that the bundle lacks.
    """
    manifest = bundle.manifest
    limits = _with_chunk(limits, prefill_backend)
    context_tokens = _context(manifest, limits)

    def plan_on(prefill: Backend, decode: Backend) -> MemoryPlan:
        return _plan(bundle, prefill, decode, context_tokens, limits, dialects or {})

    def open_on(prefill: Backend, decode: Backend) -> Runner:
        return open_runner(
            bundle,
            prefill,
            decode,
            num_rows=plan.num_rows,
            context_tokens=context_tokens,
            dialects=dialects,
            extent=_first_extent(plan),
        )

    backends = prefill_backend, decode_backend
    plan = plan_on(*backends)
    runner = open_on(*backends)
    if runner.decodes_alone and plan.num_rows > 1:
        log.warning(
            "%s: the decode graph answers a new KV cache at each step, so sequences decode one "
            "at a time",
            manifest.name,
        )
    scheduler = _scheduler(bundle, runner, plan, limits, dialects or {})
    return Engine(
        runner,
        scheduler,
        context_tokens=context_tokens,
        eos_ids=frozenset(manifest.tokens.eos_ids),
        memory_plan=plan,
        idle_after_s=idle_after_s,
        bundle_context_tokens=manifest.context_tokens,
        request_timeout_s=limits.request_timeout_s,
        clock=clock,
        recovery=limits.recovery,
        reopen=Rebuild(
            backends,
            plan.num_rows,
            plan=plan_on,
            open_runner=open_on,
            reopen_backends=reopen_backends,
        ),
        grammars=_grammars(bundle),
        bounds=engine_bounds(
            manifest,
            {
                stroke: (fact, bundle.graph(stroke, fact.dialect))
                for stroke, fact in chosen_graphs(bundle, dialects or {}).items()
            },
            {Stroke.PREFILL: prefill_backend, Stroke.DECODE: decode_backend},
        ),
    )


def _scheduler(
    bundle: Bundle, runner: Runner, plan: MemoryPlan, limits: EngineLimits, dialects: Dialects
) -> Scheduler:
    context_tokens = _context(bundle.manifest, limits)
    has_answers = reuses_answers(bundle.manifest.name, runner, limits, context_tokens)
    return Scheduler(
        KVCache(plan.num_rows, context_tokens, plan.kv_tokens_total, _buckets(plan)),
        max_queue=limits.max_queue,
        prefill_chunk_tokens=limits.prefill_chunk_tokens or DEFAULT_CHUNK_TOKENS,
        max_stall_s=None if limits.max_stall_ms is None else limits.max_stall_ms / 1e3,
        max_span_rows=runner.max_span_rows,
        chunks_prompts=runner.chunks_prompts,
        reuse_prefixes=limits.reuse_prefixes != "off",
        reuse_answers=has_answers,
        reuse_scored=limits.reuse_prefixes != "exact" or runner.scores_at_once,
        share_prefixes=limits.share_prefixes,
        prefix_store=open_store(bundle, limits, dialects, has_answers=has_answers),
        speculation=open_speculation(bundle.manifest.name, runner, limits, context_tokens),
    )


def _buckets(plan: MemoryPlan) -> Buckets | None:
    """The sizes of the KV cache where it takes what is allocated; None where that is free."""
    if plan.touches_lazily:
        return None
    return Buckets(Extent(plan.num_rows, plan.capacity_tokens))


def _first_extent(plan: MemoryPlan) -> Extent | None:
    buckets = _buckets(plan)
    return None if buckets is None else buckets.least


def _with_chunk(limits: EngineLimits, prefill_backend: Backend) -> EngineLimits:
    """The limits with a length of chunks: theirs, else what the backend advises, else ours."""
    advised = prefill_backend.device.prefill_chunk_tokens or DEFAULT_CHUNK_TOKENS
    return replace(limits, prefill_chunk_tokens=limits.prefill_chunk_tokens or advised)


def _grammars(bundle: Bundle) -> Grammars:
    return Grammars(
        bundle.file("tokenizer.json") or bundle.root / "tokenizer.json",
        bundle.manifest.architecture.vocab_size,
        frozenset(bundle.manifest.tokens.eos_ids),
    )


def _context(manifest: Manifest, limits: EngineLimits) -> int:
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


def open_runner(
    bundle: Bundle,
    prefill_backend: Backend,
    decode_backend: Backend,
    *,
    num_rows: int,
    context_tokens: int,
    dialects: Dialects | None = None,
    extent: Extent | None = None,
) -> Runner:
    """Opens both graphs, checks their contract and allocates the KV cache.

    `extent` is what the cache begins with on a device; None: room for all rows. Whatever fails, no
    session stays open.

    Raises:
        ContractError, PlacementError, BundleError, OutOfMemoryError: as for `build_engine`.
    """
    wanted = dialects or {}
    full = Extent(num_rows, kv_capacity(context_tokens))
    with ExitStack() as opened:
        prefill = _open(opened, bundle, prefill_backend, Stroke.PREFILL, wanted)
        is_one = prefill_backend is decode_backend and (
            bundle.graph(Stroke.DECODE, wanted.get(Stroke.DECODE))
            == bundle.graph(Stroke.PREFILL, wanted.get(Stroke.PREFILL))
        )
        decode = prefill if is_one else _open(opened, bundle, decode_backend, Stroke.DECODE, wanted)
        runner = Runner(
            prefill,
            decode,
            bundle.manifest,
            full=full,
            extent=extent,
        )
        settle_chunks(runner, prefill, decode, context_tokens)
        opened.pop_all()  # the runner closes them from now on
    return runner


def _open(
    opened: ExitStack, bundle: Bundle, backend: Backend, stroke: Stroke, dialects: Dialects
) -> OpenGraph:
    graph = open_graph(bundle, backend, stroke, dialects.get(stroke))
    opened.callback(graph.session.close)
    return graph


def _plan(
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
    return plan_memory(
        bytes_per_token=sum(sizes),
        context_tokens=context_tokens,
        max_rows=limits.max_rows,
        budget_bytes=limits.kv_budget_bytes,
        touches_lazily=prefill_backend.touches_lazily and decode_backend.touches_lazily,
        spare_bytes_per_token=sum(spare),
        needs=needs,
    )


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
