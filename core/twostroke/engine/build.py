"""Builds an engine: memory plan, sessions, contract, buffers, in this order."""

from __future__ import annotations

from contextlib import ExitStack

from twostroke.backends.protocol import Backend
from twostroke.bundle import Bundle
from twostroke.bundle.contract import check_contract
from twostroke.bundle.manifest import Manifest
from twostroke.engine.engine import Engine
from twostroke.engine.kv_cache import KVCache
from twostroke.engine.limits import EngineLimits
from twostroke.engine.runner import OpenStroke, Runner
from twostroke.engine.scheduler import Scheduler
from twostroke.errors import ConfigError
from twostroke.life.memory import (
    MemoryPlan,
    auto_budget_bytes,
    kv_bytes_per_token,
    kv_capacity,
    plan_memory,
)
from twostroke.types import Stroke


def build_engine(
    bundle: Bundle, prefill_backend: Backend, decode_backend: Backend, limits: EngineLimits
) -> Engine:
    """An engine that is ready to `start`. The backends stay the caller's to close.

    Raises:
        ConfigError: a context longer than the bundle's.
        OutOfMemoryError: not one row fits the KV budget.
        ContractError: a graph that the engine cannot feed.
        PlacementError, BundleError: from the backends.
    """
    manifest = bundle.manifest
    context_tokens = limits.context_tokens or manifest.context_tokens
    if context_tokens > manifest.context_tokens:
        raise ConfigError(
            [
                f"context_tokens is {context_tokens}, the bundle {manifest.name!r} was exported "
                f"for {manifest.context_tokens}. Lower it or export with a longer --context."
            ]
        )
    plan = _plan(manifest, prefill_backend, decode_backend, context_tokens, limits)
    runner = open_runner(
        bundle,
        prefill_backend,
        decode_backend,
        num_rows=plan.num_rows,
        context_tokens=context_tokens,
    )
    scheduler = Scheduler(
        KVCache(plan.num_rows, context_tokens, plan.kv_tokens_total),
        max_queue=limits.max_queue,
        prefill_chunk_tokens=limits.prefill_chunk_tokens,
        max_span_rows=runner.max_span_rows,
    )
    return Engine(
        runner,
        scheduler,
        context_tokens=context_tokens,
        eos_ids=frozenset(manifest.tokens.eos_ids),
        memory_plan=plan,
        bundle_context_tokens=manifest.context_tokens,
    )


def open_runner(
    bundle: Bundle,
    prefill_backend: Backend,
    decode_backend: Backend,
    *,
    num_rows: int,
    context_tokens: int,
) -> Runner:
    """Opens both sessions, checks their contract and allocates the KV cache.

    Whatever fails, no session stays open.

    Raises:
        ContractError, PlacementError, BundleError, OutOfMemoryError: as for `build_engine`.
    """
    with ExitStack() as opened:
        runner = Runner(
            _open_stroke(opened, bundle, prefill_backend, Stroke.PREFILL),
            _open_stroke(opened, bundle, decode_backend, Stroke.DECODE),
            bundle.manifest,
            num_rows=num_rows,
            capacity_tokens=kv_capacity(context_tokens),
        )
        opened.pop_all()  # the runner closes them from now on
    return runner


def _open_stroke(opened: ExitStack, bundle: Bundle, backend: Backend, stroke: Stroke) -> OpenStroke:
    graph = bundle.graph(stroke)
    session = backend.open_session(graph, stroke)
    opened.callback(session.close)
    num_layers = len(bundle.manifest.kv_layers)
    check_contract(graph.name, stroke, session.inputs, session.outputs, num_layers)
    return OpenStroke(backend, session)


def _plan(
    manifest: Manifest,
    prefill_backend: Backend,
    decode_backend: Backend,
    context_tokens: int,
    limits: EngineLimits,
) -> MemoryPlan:
    num_copies = 1 if prefill_backend is decode_backend else 2
    bytes_per_token = num_copies * kv_bytes_per_token(manifest.kv_layers, manifest.kv_dtype)
    budget_bytes = limits.kv_budget_bytes
    if budget_bytes is None:
        device = decode_backend.device
        budget_bytes = auto_budget_bytes(device.memory_bytes, is_host=device.kind == "cpu")
    return plan_memory(
        bytes_per_token=bytes_per_token,
        context_tokens=context_tokens,
        max_rows=limits.max_rows,
        budget_bytes=budget_bytes,
        touches_lazily=prefill_backend.touches_lazily and decode_backend.touches_lazily,
    )
