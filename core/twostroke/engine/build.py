"""Builds an engine: memory plan, sessions, contract, buffers, in this order."""

from __future__ import annotations

import functools
import logging
import time
from contextlib import ExitStack

from twostroke.backends.protocol import Backend
from twostroke.bundle import Bundle
from twostroke.engine.chunk_probe import settle_chunks
from twostroke.engine.engine import Engine
from twostroke.engine.engine_plan import (
    Dialects,
    buckets_of,
    chosen_graphs,
    context_of,
    first_extent,
    plan_engine,
    with_chunk,
)
from twostroke.engine.exactness import open_speculation, reuses_answers
from twostroke.engine.intake import IDLE_AFTER_S
from twostroke.engine.kv_cache import KVCache
from twostroke.engine.kv_extent import Extent
from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS, EngineLimits
from twostroke.engine.open_graph import OpenGraph, open_graph
from twostroke.engine.open_store import open_store
from twostroke.engine.rebuild import Rebuild, ReopenBackends
from twostroke.engine.runner import Runner
from twostroke.engine.scheduler import Scheduler
from twostroke.grammar import Grammars
from twostroke.life.memory import (
    MemoryPlan,
    kv_capacity,
)
from twostroke.life.roofline import Bounds, engine_bounds
from twostroke.life.timeline import Clock
from twostroke.types import Stroke

log = logging.getLogger(__name__)


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
    limits = with_chunk(limits, prefill_backend)
    context_tokens = context_of(bundle.manifest, limits)
    plan_on = functools.partial(
        plan_engine,
        bundle,
        context_tokens=context_tokens,
        limits=limits,
        dialects=dialects or {},
    )
    backends = prefill_backend, decode_backend
    plan = plan_on(*backends)
    open_on = functools.partial(
        open_runner,
        bundle,
        num_rows=plan.num_rows,
        context_tokens=context_tokens,
        dialects=dialects,
        extent=first_extent(plan),
    )
    runner = open_on(*backends)
    return Engine(
        runner,
        _scheduler(bundle, runner, plan, limits, dialects or {}),
        context_tokens=context_tokens,
        eos_ids=frozenset(bundle.manifest.tokens.eos_ids),
        memory_plan=plan,
        idle_after_s=idle_after_s,
        bundle_context_tokens=bundle.manifest.context_tokens,
        request_timeout_s=limits.request_timeout_s,
        clock=clock,
        recovery=limits.recovery,
        reopen=Rebuild(backends, plan.num_rows, plan_on, open_on, reopen_backends),
        grammars=_grammars(bundle),
        bounds=_bounds(bundle, dialects or {}, backends),
    )


def _bounds(bundle: Bundle, dialects: Dialects, backends: tuple[Backend, Backend]) -> Bounds:
    graphs = {
        stroke: (fact, bundle.graph(stroke, fact.dialect))
        for stroke, fact in chosen_graphs(bundle, dialects).items()
    }
    prefill, decode = backends
    return engine_bounds(bundle.manifest, graphs, {Stroke.PREFILL: prefill, Stroke.DECODE: decode})


def _scheduler(
    bundle: Bundle, runner: Runner, plan: MemoryPlan, limits: EngineLimits, dialects: Dialects
) -> Scheduler:
    context_tokens = context_of(bundle.manifest, limits)
    if runner.decodes_alone and plan.num_rows > 1:
        log.warning(
            "%s: the decode graph answers a new KV cache at each step, so sequences decode one "
            "at a time",
            bundle.manifest.name,
        )
    buckets = buckets_of(plan, can_shrink=not runner.replays_decode)
    has_answers = reuses_answers(bundle.manifest.name, runner, limits, context_tokens)
    return Scheduler(
        KVCache(
            plan.num_rows,
            context_tokens,
            plan.kv_tokens_total,
            buckets,
        ),
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


def _grammars(bundle: Bundle) -> Grammars:
    return Grammars(
        bundle.file("tokenizer.json") or bundle.root / "tokenizer.json",
        bundle.manifest.architecture.vocab_size,
        frozenset(bundle.manifest.tokens.eos_ids),
    )


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
