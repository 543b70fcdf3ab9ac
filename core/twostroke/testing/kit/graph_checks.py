"""Checks of what sessions compute: against the reference, and against themselves."""

from __future__ import annotations

import numpy as np

from twostroke.backends.ort.placement import CPU_PROVIDER, prove_placement
from twostroke.errors import PlacementError
from twostroke.testing.kit.checking import (
    Check,
    CheckFailedError,
    CheckSkippedError,
    require,
    require_close,
)
from twostroke.testing.kit.rows import Ids, continued, differs_by, in_each_setup, prefill, prompt
from twostroke.testing.kit.setups import Setup
from twostroke.testing.kit.subject import CONTEXT_TOKENS, Subject
from twostroke.types import Stroke

_LENGTHS = (3, 17, 1, 9)


def _prompts(setup: Setup, seed: int) -> list[Ids]:
    vocab_size = setup.runner.vocab_size
    return [prompt(vocab_size, seed + row, length) for row, length in enumerate(_LENGTHS)]


def _require_batches(setup: Setup) -> None:
    """Raises CheckSkippedError where sequences run one at a time."""
    if setup.runner.max_span_rows == 1:
        raise CheckSkippedError(
            "without views of rows, or with a growing cache, there are no batches"
        )


def _opens(subject: Subject) -> dict[str, float]:
    subject.setup(subject.preferred)
    return {"graphs": 2 * len(subject.setups())}


def _placement(subject: Subject, setup: Setup) -> dict[str, float]:
    num_nodes, kind = 0, subject.backend.device.kind
    for stroke in Stroke:
        placement = setup.runner.placements[stroke]
        total, asked = sum(placement.nodes.values()), placement.requested
        require(total > 0, f"no node of the {stroke} graph has a place")
        elsewhere = total - placement.nodes.get(asked, 0)
        told = sum(placement.strays.values())
        require(
            told == elsewhere,
            f"{elsewhere} nodes of the {stroke} graph are elsewhere than on {asked}, "
            f"{told} of them are told",
        )
        require(
            asked != CPU_PROVIDER or kind == "cpu",
            f"the device is a {kind}, the {stroke} graph was asked for {asked}",
        )
        try:
            prove_placement(placement, f"the {stroke} graph", subject.spec.name, "")
        except PlacementError as error:
            raise CheckFailedError(str(error).strip()) from error
        num_nodes += placement.nodes[asked]
    return {"nodes on the device": num_nodes}


@in_each_setup
def _chunks(subject: Subject, setup: Setup) -> dict[str, float]:
    runner = setup.runner
    ids = prompt(runner.vocab_size, 1, 23)
    whole = prefill(runner, 0, ids)
    return differs_by(
        *(
            require_close(
                prefill(runner, 1, ids, chunk), whole, subject.tolerance, f"chunks of {chunk}"
            )
            for chunk in (1, 7, 16)
        )
    )


@in_each_setup
def _decode(subject: Subject, setup: Setup) -> dict[str, float]:
    ids = prompt(setup.runner.vocab_size, 2, 12)
    expected = prefill(setup.runner, 0, ids)
    found = continued(setup.runner, 1, ids, 9)[-1:]
    return differs_by(require_close(found, expected, subject.tolerance, "three decode steps"))


@in_each_setup
def _ragged(subject: Subject, setup: Setup) -> dict[str, float]:
    runner = setup.runner
    _require_batches(setup)
    prompts, alone = _prompts(setup, 0), []
    for row, ids in enumerate(prompts):
        prefill(runner, row, ids)
        alone.append(runner.decode(row, [row + 1], [len(ids)]).copy())
    lengths = [len(ids) for ids in prompts]
    expected, allowed = np.concatenate(alone), subject.tolerance
    together = runner.decode(0, [1, 2, 3, 4], lengths)
    first = require_close(together, expected, allowed, "a batch of four")
    span = runner.decode(1, [2, 3], lengths[1:3])
    second = require_close(span, expected[1:3], allowed, "a span of rows 1 and 2")
    return differs_by(first, second)


@in_each_setup
def _turns(subject: Subject, setup: Setup) -> dict[str, float]:
    runner, differences = setup.runner, []
    prompts = _prompts(setup, 20)
    alone = [prefill(runner, 0, (*ids, 1, 2)) for ids in prompts]
    for row, ids in enumerate(prompts):
        prefill(runner, row, ids)
    for row, ids in enumerate(prompts):
        runner.decode(row, [1], [len(ids)])
    for row, (ids, expected) in enumerate(zip(prompts, alone, strict=True)):
        logits = runner.decode(row, [2], [len(ids) + 1])
        what = f"row {row}, taking turns with others"
        differences.append(require_close(logits, expected, subject.tolerance, what))
    return differs_by(*differences)


@in_each_setup
def _idle(subject: Subject, setup: Setup) -> dict[str, float]:
    runner = setup.runner
    _require_batches(setup)
    ids = prompt(runner.vocab_size, 5, 20)
    expected = prefill(runner, 3, ids)
    prefill(runner, 0, ids[:4])
    runner.prefill(1, 0, ids[:11], is_last=False)
    prefill(runner, 2, ids[:2])
    runner.decode(0, [1, 0, 1], [4, 11, 2])
    logits = runner.prefill(1, 11, ids[11:], is_last=True)
    return differs_by(require_close(logits, expected, subject.tolerance, "a row that idled"))


@in_each_setup
def _reuse(subject: Subject, setup: Setup) -> dict[str, float]:
    runner = setup.runner
    prefill(runner, 0, prompt(runner.vocab_size, 6, 30))
    ids = prompt(runner.vocab_size, 7, 5)
    used, fresh = prefill(runner, 0, ids), prefill(runner, 1, ids)
    return differs_by(require_close(used, fresh, subject.tolerance, "a row used before"))


@in_each_setup
def _scores(subject: Subject, setup: Setup) -> dict[str, float]:
    runner = setup.runner
    ids = prompt(runner.vocab_size, 9, 12)
    steps = np.concatenate([prefill(runner, 0, ids[:end]) for end in range(1, 13)])
    first = runner.score(1, 0, ids[:7]).copy()
    scores = np.concatenate([first, runner.score(1, 7, ids[7:])])
    what = "logits of every position of a chunk"
    return differs_by(require_close(scores, steps, subject.tolerance, what))


@in_each_setup
def _self_check(subject: Subject, setup: Setup) -> dict[str, float]:
    check = subject.opened_bundle.manifest.self_check
    if check is None:
        raise CheckSkippedError("the bundle carries no self check")
    ids = list(check.prompt_ids)
    logits = prefill(setup.runner, 0, tuple(ids))
    greedy = check.greedy_ids[: CONTEXT_TOKENS - len(ids)]
    for expected in greedy:
        found = int(logits[0].argmax())
        require(found == expected, f"after {len(ids)} tokens: {found}, the bundle says {expected}")
        logits = setup.runner.decode(0, [expected], [len(ids)])
        ids.append(expected)
    return {"tokens": len(greedy)}


GRAPH_CHECKS = (
    Check("opens", "the graphs that the spec wants are loaded", _opens),
    Check("placement", "the nodes are where they were asked to be", in_each_setup(_placement)),
    Check("chunked-prefill", "a prompt in chunks is the whole prompt", _chunks),
    Check("decode", "decode goes on with what prefill wrote", _decode),
    Check("ragged-batch", "sequences in a batch answer what each does alone", _ragged),
    Check("turns", "so do sequences that take turns", _turns),
    Check("idle-row", "a row that idles in a batch keeps its tokens", _idle),
    Check("row-reuse", "a row forgets its last sequence", _reuse),
    Check("scores", "the logits of all positions of a chunk are those of each", _scores),
    Check("self-check", "the bundle's own greedy tokens come out", _self_check),
)
