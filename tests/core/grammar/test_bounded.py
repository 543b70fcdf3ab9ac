import threading

import pytest

from twostroke.errors import RequestError, UnavailableError
from twostroke.grammar import bounded
from twostroke.grammar.bounded import NUM_THREADS, run_bounded


def test_threads_that_hang_are_bounded_in_number(monkeypatch):
    monkeypatch.setattr(bounded, "_places", threading.BoundedSemaphore(NUM_THREADS))
    release = threading.Event()
    try:
        for _ in range(NUM_THREADS):
            with pytest.raises(RequestError, match="regex takes more than"):
                run_bounded(lambda: release.wait(30), limit_s=0.02, param="regex")
        with pytest.raises(UnavailableError, match="Too many grammars"):
            run_bounded(lambda: 1, limit_s=0.02, param="regex")
    finally:
        release.set()
    assert run_bounded(lambda: 1, limit_s=30, param="regex") == 1


def test_a_fault_of_the_task_is_raised_and_its_place_is_free_again(monkeypatch):
    monkeypatch.setattr(bounded, "_places", threading.BoundedSemaphore(1))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            run_bounded(lambda: 1 // 0, limit_s=30, param="regex")


def test_other_threads_keep_the_stack_they_had():
    before = threading.stack_size()
    run_bounded(lambda: None, limit_s=30, param="regex")
    assert threading.stack_size() == before


def test_a_thread_that_cannot_start_is_a_503_and_keeps_no_place(monkeypatch):
    def refuse(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bounded, "_places", threading.BoundedSemaphore(1))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="can't start new thread"):
                run_bounded(lambda: 1, limit_s=0.02, param="regex")
    assert run_bounded(lambda: 1, limit_s=30, param="regex") == 1
