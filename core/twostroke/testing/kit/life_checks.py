"""Checks of a backend's life: instances side by side, closing, threads, memory, interruption."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from twostroke.bundle import open_bundle
from twostroke.engine.build import open_runner
from twostroke.engine.runner import Runner
from twostroke.errors import EngineError
from twostroke.testing.kit.bundles import LONG_CONTEXT_TOKENS
from twostroke.testing.kit.checking import (
    Check,
    CheckFailedError,
    CheckSkippedError,
    require,
    require_close,
)
from twostroke.testing.kit.rows import continued, differs_by, in_each_setup, prefill, prompt
from twostroke.testing.kit.setups import Setup
from twostroke.testing.kit.subject import Subject

_INTERRUPTS_S = 0.0002
_MAX_TRIES = 5


@in_each_setup
def _two_instances(subject: Subject, setup: Setup) -> dict[str, float]:
    vocab_size = setup.runner.vocab_size
    prompts = [prompt(vocab_size, 50 + number, 9) for number in range(2)]
    expected = [continued(setup.runner, 0, ids, 6) for ids in prompts]
    differences = []
    with subject.another() as first, subject.another() as second:
        require(first is not second, "opened twice, it is the same object")
        with subject.running(first, first, setup.dialects) as one:
            with subject.running(second, second, setup.dialects) as other:
                runners = (one, other)
                for runner, ids in zip(runners, prompts, strict=True):
                    prefill(runner, 0, ids[:6])
                for position in (6, 7, 8):
                    for number, runner in enumerate(runners):
                        token = prompts[number][position]
                        logits = runner.decode(0, [token], [position])
                        differences.append(
                            require_close(
                                logits,
                                expected[number][position - 5 : position - 4],
                                subject.tolerance,
                                f"instance {number + 1}, running beside another",
                            )
                        )
            found = prefill(one, 1, prompts[0][:6])
            what = "an instance whose neighbour was closed"
            differences.append(require_close(found, expected[0][:1], subject.tolerance, what))
    return differs_by(*differences)


@in_each_setup
def _reopen(subject: Subject, setup: Setup) -> dict[str, float]:
    ids = prompt(setup.runner.vocab_size, 8, 5)
    expected, differences = prefill(setup.runner, 0, ids), []
    for number in (2, 3):
        with subject.another() as backend:
            runner = subject.open_runner(backend, backend, setup.dialects)
            found = prefill(runner, 0, ids)
            runner.close()
        what = f"opened for the {number}. time"
        differences.append(require_close(found, expected, subject.tolerance, what))
    return differs_by(*differences)


@in_each_setup
def _closed(subject: Subject, setup: Setup) -> dict[str, float]:
    with subject.running(subject.backend, subject.backend, setup.dialects) as runner:
        prefill(runner, 0, (1, 2))
    try:
        prefill(runner, 0, (1,))
    except EngineError:
        return {}
    except Exception as error:
        raise CheckFailedError(
            f"a closed session refuses with {type(error).__name__}, not EngineError: {error}"
        ) from error
    raise CheckFailedError("a closed session still runs")


@in_each_setup
def _thread(subject: Subject, setup: Setup) -> dict[str, float]:
    ids = prompt(setup.runner.vocab_size, 10, 7)
    expected = continued(setup.runner, 0, ids, 4)
    found = _in_thread(lambda: continued(setup.runner, 1, ids, 4))
    what = "in a thread that did not open the session"
    return differs_by(require_close(found, expected, subject.tolerance, what))


def _in_thread(work: Callable[[], Any]) -> Any:
    """What `work` answers or raises, in a thread of its own."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="conformance")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return answers[0]


def _cancel(subject: Subject, setup: Setup) -> dict[str, float]:
    """A long prompt that is interrupted all along ends early, and its row can be used again."""
    long = subject.bundle.long
    if long is None:
        raise CheckSkippedError("the bundle is too short for a run to be interrupted in")
    runner = open_runner(
        open_bundle(long),
        subject.backend,
        subject.backend,
        num_rows=1,
        context_tokens=LONG_CONTEXT_TOKENS,
        dialects=setup.dialects,
    )
    try:
        ids = prompt(runner.vocab_size, 12, LONG_CONTEXT_TOKENS - 1)
        expected = prefill(runner, 0, ids[:9])
        num_tries = _interrupted(runner, ids)
        found = prefill(runner, 0, ids[:9])
    finally:
        runner.close()
    what = "the run after one that was interrupted"
    return differs_by(require_close(found, expected, subject.tolerance, what)) | {
        "tries": num_tries
    }


def _interrupted(runner: Runner, ids: tuple[int, ...]) -> int:
    """Reads a prompt while another thread interrupts it; answers at which try it ended early.

    Raises:
        CheckFailedError: no run did.
        CheckSkippedError: the backend does not say that it can.
    """
    told: list[bool] = []
    for number in range(1, _MAX_TRIES + 1):
        is_over = threading.Event()

        def interrupt(is_over: threading.Event = is_over) -> None:
            while not is_over.wait(_INTERRUPTS_S):
                told.append(runner.interrupt())

        thread = threading.Thread(target=interrupt, name="conformance-interrupts")
        thread.start()
        try:
            runner.prefill(0, 0, ids, is_last=True)
        except EngineError:
            return number
        finally:
            is_over.set()
            thread.join()
    if not any(told):
        raise CheckSkippedError("its runs of a graph cannot be interrupted")
    raise CheckFailedError(
        f"{_MAX_TRIES} prompts of {len(ids)} tokens were read to the end although `interrupt` was "
        f"called all the while"
    )


LIFE_CHECKS = (
    Check("two-instances", "two at once do not know of each other", _two_instances),
    Check("reopen", "closed and opened again it answers the same", _reopen),
    Check("closed", "a closed session refuses with EngineError", _closed),
    Check("thread", "another thread than the opener's may run it", _thread),
    Check("cancel", "a run that is interrupted ends early", in_each_setup(_cancel)),
)
