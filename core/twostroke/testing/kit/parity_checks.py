"""Checks against an answer from elsewhere: the reference of the bundle, or another backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from twostroke.backends.choose import probe
from twostroke.backends.protocol import Array, Backend
from twostroke.engine.kv_extent import Extent
from twostroke.testing.kit.checking import Check, CheckSkippedError, require_close
from twostroke.testing.kit.rows import Ids, continued, differs_by, in_each_setup, prompt
from twostroke.testing.kit.setups import Setup
from twostroke.testing.kit.subject import CONTEXT_TOKENS, NUM_ROWS, Subject

_SHARES = ((1, 1), (5, 3), (40, 32), (23, 23))  # tokens, and how many of them prefill reads


def _parity(dialect: str) -> Callable[[Subject], dict[str, float]]:
    def run(subject: Subject) -> dict[str, float]:
        setup = subject.setup(dialect)
        differences = []
        for seed, (num_tokens, num_read) in enumerate(_SHARES):
            ids = prompt(setup.runner.vocab_size, 30 + seed, num_tokens)
            found = continued(setup.runner, 0, ids, num_read)
            expected = _reference(subject, setup, ids)[num_read - 1 :]
            what = f"{num_read} tokens read, {num_tokens - num_read} decoded"
            differences.append(require_close(found, expected, subject.tolerance, what))
        return differs_by(*differences)

    return run


def _reference(subject: Subject, setup: Setup, ids: Ids) -> Array:
    """The logits that follow each token: the bundle's own reference, or what the partner says.

    Raises:
        CheckSkippedError: there is neither.
    """
    if subject.bundle.reference is not None:
        return subject.bundle.reference(ids)
    if subject.partner is None or subject.partner.name == subject.spec.name:
        raise CheckSkippedError("the bundle has no reference, and there is no other backend to ask")
    with _partner(subject) as partner, subject.running(partner, partner, setup.dialects) as runner:
        return continued(runner, 0, ids, 1)


@contextmanager
def _partner(subject: Subject) -> Iterator[Backend]:
    """The partner, open on its first device; without one, a second instance of the subject."""
    spec = subject.partner
    if spec is None or spec.name == subject.spec.name:
        with subject.another() as backend:
            yield backend
        return
    found = probe(spec)
    if not found.is_available:
        raise CheckSkippedError(f"the backend {spec.name!r} is not here: {found.reason}")
    backend = spec.open(found.devices[0], {})
    try:
        yield backend
    finally:
        backend.close()


def _hand_over(*, is_away: bool) -> Callable[[Subject, Setup], dict[str, float]]:
    """Rows change hands where prefill ends, and answer what the subject does alone."""

    def run(subject: Subject, setup: Setup) -> dict[str, float]:
        ids = prompt(setup.runner.vocab_size, 40, 20)
        expected = continued(setup.runner, 0, ids, 15)
        with _partner(subject) as partner:
            strokes = (subject.backend, partner) if is_away else (partner, subject.backend)
            with subject.running(*strokes, setup.dialects) as runner:
                found = continued(runner, 2, ids, 15)
        way = "prefill here, decode there" if is_away else "prefill there, decode here"
        return differs_by(require_close(found, expected, subject.tolerance, way))

    return run


def _contents(subject: Subject, setup: Setup) -> dict[str, float]:
    """What is read of a row and written to another one is the same sequence there."""
    runner = setup.runner
    ids = prompt(runner.vocab_size, 41, 21)
    expected = continued(runner, 0, ids, 20)[-1:]
    stored = runner.save_row(0, 20)
    runner.restore_row(3, stored, 20, 19)
    found = runner.prefill(3, 19, ids[19:], is_last=True).copy()
    return differs_by(
        require_close(found, expected, subject.tolerance, "a row saved and restored")
    ) | {"bytes a row": len(stored)}


def _buckets(subject: Subject, setup: Setup) -> dict[str, float]:
    """The cache grows and shrinks under a sequence: arrays go, their rows stay."""
    if subject.backend.touches_lazily:
        raise CheckSkippedError("memory that nobody wrote is free, so caches keep their size")
    ids = prompt(setup.runner.vocab_size, 42, 20)
    expected = continued(setup.runner, 0, ids, 10)[1:]  # [10, vocab], the steps from 10 to 19
    small, large = Extent(1, 32), Extent(NUM_ROWS, CONTEXT_TOKENS + 1)
    backend, differences = subject.backend, []
    runner = subject.open_runner(backend, backend, setup.dialects, small)
    try:
        runner.prefill(0, 0, ids[:10], is_last=True)
        for position in range(10, 20):
            if position in (12, 16):
                extent, what = (large, "grew") if position == 12 else (small, "shrank")
                runner.resize(extent, [position, *[0] * (NUM_ROWS - 1)])
            found = runner.decode(0, [ids[position]], [position])
            told = f"after the cache {what}" if position >= 12 else "in a small cache"
            reference = expected[position - 10 : position - 9]
            differences.append(require_close(found, reference, subject.tolerance, told))
    finally:
        runner.close()
    return differs_by(*differences)


PARITY_CHECKS = (
    Check("parity-fused", "fused graphs answer what the reference does", _parity("fused")),
    Check("parity-standard", "so do standard graphs", _parity("standard")),
    Check("kv-to-cpu", "the CPU goes on from a KV cache", in_each_setup(_hand_over(is_away=True))),
    Check("kv-from-cpu", "and the other way round", in_each_setup(_hand_over(is_away=False))),
    Check("kv-contents", "a row that is saved can be restored", in_each_setup(_contents)),
    Check("kv-buckets", "a cache may grow and shrink under its rows", in_each_setup(_buckets)),
)
