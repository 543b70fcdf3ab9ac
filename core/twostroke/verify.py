"""Checks a bundle without its source model: files, graphs, and the answers it gave at export.

Of another tool's folder there is nothing recorded: its files and graphs are checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import load_plugins
from twostroke.bundle import Bundle
from twostroke.bundle.manifest import Dialect, SelfCheck
from twostroke.engine import Engine, EngineLimits, SyncEvents, build_engine
from twostroke.errors import BundleError
from twostroke.source import open_resolved
from twostroke.types import FailedEvent, Request, SamplingParams, Stroke, TokenEvent

# A race this close (in logits) may be decided by how a processor rounds.
_CLOSE_RACE = {"fp32": 0.02, "fp16": 0.2, "bf16": 1.0, "int8": 1.0, "int4": 2.0, "mixed": 2.0}
_BACKEND = "cpu"


def verify_bundle(path: Path) -> list[str]:
    """Repeats what an export checked, as far as it needs no source model; takes seconds.

    Returns one line for each check that passed.

    Raises:
        BundleError: a file, a graph or an answer is not what it was; the message says which.
        BackendError: the graphs cannot be run here.
    """
    bundle = open_resolved(path)
    manifest = bundle.manifest
    known_by = "each with its SHA-256" if bundle.origin is None else "by size alone"
    lines = [f"files: {len(manifest.files)} with {bundle.num_bytes:,} bytes, {known_by}"]
    for dialect in manifest.dialects:
        lines += _check_graphs(bundle, dialect)
    return lines


def _check_graphs(bundle: Bundle, dialect: Dialect) -> Iterator[str]:
    """The lines of one dialect's graphs, which are named where there are others."""
    manifest, check = bundle.manifest, bundle.manifest.self_check
    which = f" ({dialect})" if len(manifest.dialects) > 1 else ""
    with _running(bundle, check, dialect) as engine:
        where = engine.placements[Stroke.DECODE].sentence()
        yield f"graphs{which}: prefill and decode keep the contract; {where}"
        if check is None:
            recorded = bundle.origin and f"{bundle.origin}, with no answers recorded"
            yield f"answers{which}: {recorded or 'the bundle records none to compare with'}"
            return
        yield f"answers{which}: {_compare(bundle, check, engine)}"
    for figures in manifest.verifications:
        if figures.dialect == dialect and figures.mean_kl is not None:
            yield (
                f"at export{which}: most likely token equal in {figures.num_argmax_equal} of "
                f"{figures.num_steps} steps, mean KL {figures.mean_kl:.2g} nats"
            )


@contextlib.contextmanager
def _running(
    bundle: Bundle, check: SelfCheck | None, dialect: Dialect | None = None
) -> Iterator[Engine]:
    """An engine with one row, just long enough for the check.

    Raises:
        BundleError: a graph is broken: it cannot be loaded or fed.
    """
    num_tokens = 0 if check is None else len(check.prompt_ids) + len(check.greedy_ids)
    context_tokens = min(bundle.manifest.context_tokens, max(2, num_tokens + 1))
    limits = EngineLimits(
        max_rows=1, max_queue=1, context_tokens=context_tokens, reuse_prefixes="off"
    )
    with contextlib.ExitStack() as stack:
        backend = open_backend(load_plugins(), _BACKEND).backend
        stack.callback(backend.close)
        dialects = {g.stroke: dialect for g in bundle.manifest.graphs if g.dialect == dialect}
        engine = build_engine(bundle, backend, backend, limits, dialects=dialects)
        stack.callback(engine.stop)
        engine.start()
        yield engine


def _greedy(
    bundle: Bundle, engine: Engine, prompt_ids: tuple[int, ...], num_tokens: int
) -> list[int]:
    """The ids that the graphs choose after a prompt.

    Raises:
        BundleError: a graph cannot be run.
    """
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    request = Request("verify", prompt_ids, sampling)
    events = [event for _, event in SyncEvents(engine, [request])]
    failed = [event for event in events if isinstance(event, FailedEvent)]
    if failed:
        raise BundleError(f"{bundle.root} cannot answer: {failed[0].error}")
    return [event.token_id for event in events if isinstance(event, TokenEvent)]


def _compare(bundle: Bundle, check: SelfCheck, engine: Engine) -> str:
    """Answers the prompt again. After a close race that ends otherwise the export's own token is
    fed, so that what follows is compared as well.

    Raises:
        BundleError: a token differs where the race was not close.
    """
    wanted, margins = check.greedy_ids, check.greedy_margins
    rounded = {graph.quantisation.precision for graph in bundle.manifest.graphs}
    rounded |= {graph.kv_dtype for graph in bundle.manifest.graphs}  # of the cache: int8
    close = max(_CLOSE_RACE.get(kind, 0.0) for kind in rounded)
    lost: list[float] = []
    position = 0
    while position < len(wanted):
        prompt_ids = (*check.prompt_ids, *wanted[:position])
        answered = _greedy(bundle, engine, prompt_ids, len(wanted) - position)
        pairs = zip(wanted[position:], answered, strict=True)
        position += next((n for n, (was, now) in enumerate(pairs) if was != now), len(answered))
        if position == len(wanted):
            break
        if position >= len(margins) or margins[position] >= close:
            raise BundleError(
                f"{bundle.root} answers otherwise than at export: token {position + 1} of "
                f"{len(wanted)} differs. Its graphs do not compute here what they were verified "
                f"for; export the model again with `twostroke export`, and report this if it stays."
            )
        lost.append(margins[position])
        position += 1
    if not lost:
        return f"all {len(wanted)} tokens as at export"
    return (
        f"{len(wanted) - len(lost)} of {len(wanted)} tokens as at export; the others were "
        f"close races ({', '.join(f'{margin:.2g}' for margin in lost)}) that this processor "
        f"decides otherwise"
    )
