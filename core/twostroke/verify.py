"""Checks a bundle without its source model: files, graphs, and the answers it gave at export."""

from __future__ import annotations

import contextlib
from pathlib import Path

from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import load_plugins
from twostroke.bundle import Bundle, open_bundle
from twostroke.bundle.manifest import SelfCheck
from twostroke.engine import EngineLimits, SyncEvents, build_engine
from twostroke.errors import BundleError
from twostroke.types import FailedEvent, Request, SamplingParams, Stroke, TokenEvent

# A race this close (in logits) may be decided by how a processor rounds.
_CLOSE_RACE = {"fp32": 0.02, "fp16": 0.2, "int8": 1.0, "int4": 2.0}
_BACKEND = "cpu"


def verify_bundle(path: Path) -> list[str]:
    """Repeats what an export checked, as far as it needs no source model; takes seconds.

    Returns one line for each check that passed.

    Raises:
        BundleError: a file, a graph or an answer is not what it was; the message says which.
        BackendError: the graphs cannot be run here.
    """
    bundle = open_bundle(path)
    manifest = bundle.manifest
    lines = [
        f"files: {len(manifest.files)} with {bundle.num_bytes:,} bytes, each with its SHA-256",
    ]
    check = manifest.self_check
    answered, placement = _answer(bundle, check)
    lines.append(f"graphs: prefill and decode keep the contract; {placement}")
    if check is None:
        return [*lines, "answers: the bundle records none to compare with"]
    lines.append(_compare(bundle, check, answered))
    figures = manifest.verification
    if figures is not None and figures.mean_kl is not None:
        lines.append(
            f"at export: most likely token equal in {figures.num_argmax_equal} of "
            f"{figures.num_steps} steps, mean KL {figures.mean_kl:.2g} nats"
        )
    return lines


def _answer(bundle: Bundle, check: SelfCheck | None) -> tuple[tuple[int, ...], str]:
    """The greedy ids after the check's prompt, and where the graphs ran.

    Raises:
        BundleError: a graph is broken: it cannot be loaded, fed or run.
    """
    wanted = len(check.greedy_ids) if check is not None else 0
    prompt = check.prompt_ids if check is not None else ()
    limits = EngineLimits(max_rows=1, max_queue=1, context_tokens=_context(bundle, prompt, wanted))
    with contextlib.ExitStack() as stack:
        backend = open_backend(load_plugins(), _BACKEND).backend
        stack.callback(backend.close)
        engine = build_engine(bundle, backend, backend, limits)
        stack.callback(engine.stop)
        where = engine.placements[Stroke.DECODE].sentence()
        if not wanted:
            return (), where
        engine.start()
        sampling = SamplingParams(max_tokens=wanted, temperature=0.0, ignore_eos=True)
        events = list(SyncEvents(engine, Request("verify", prompt, sampling)))
    failed = [event for event in events if isinstance(event, FailedEvent)]
    if failed:
        raise BundleError(f"{bundle.root} cannot answer: {failed[0].error}")
    return tuple(event.token_id for event in events if isinstance(event, TokenEvent)), where


def _context(bundle: Bundle, prompt: tuple[int, ...], wanted: int) -> int:
    return min(bundle.manifest.context_tokens, max(2, len(prompt) + wanted + 1))


def _compare(bundle: Bundle, check: SelfCheck, answered: tuple[int, ...]) -> str:
    pairs = zip(check.greedy_ids, answered, strict=False)
    num_equal = next((n for n, (was, now) in enumerate(pairs) if was != now), len(answered))
    if num_equal == len(check.greedy_ids):
        return f"answers: all {num_equal} tokens as at export"
    margins = check.greedy_margins
    close = _CLOSE_RACE.get(bundle.manifest.quantisation.precision, 0.0)
    if num_equal < len(margins) and num_equal < len(answered) and margins[num_equal] < close:
        return (
            f"answers: {num_equal} of {len(check.greedy_ids)} tokens as at export, then a close "
            f"race ({margins[num_equal]:.2g}) that this processor decides otherwise"
        )
    raise BundleError(
        f"{bundle.root} answers otherwise than at export: token {num_equal + 1} of "
        f"{len(check.greedy_ids)} differs. Its graphs do not compute here what they were verified "
        f"for; export the model again with `twostroke export`, and report this if it stays."
    )
