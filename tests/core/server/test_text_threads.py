from __future__ import annotations

import os
import sys
import threading

import pytest

from twostroke.server import text_threads
from twostroke.server.text_threads import LONG_CHARACTERS, threads_for

LONG = "a" * LONG_CHARACTERS


@pytest.mark.parametrize(
    "prompt",
    [
        LONG,
        [{"role": "user", "content": LONG}],
        [{"role": "user", "content": LONG[1:]}, {"role": "user", "content": "b"}],
        [{"role": "user", "content": [{"type": "text", "text": LONG}]}],
    ],
)
def test_long_texts_have_a_thread_of_their_own(prompt):
    assert threads_for(prompt) is text_threads._long


@pytest.mark.parametrize(
    "prompt", ["", LONG[1:], [1] * LONG_CHARACTERS, [{"role": "user"}], [{"content": [None, {}]}]]
)
def test_short_ones_and_ids_do_not_wait_for_them(prompt):
    assert threads_for(prompt) is text_threads._short


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_long_texts_stand_back():
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert text_threads._long.submit(niceness).result(10) > niceness()
    assert text_threads._short.submit(niceness).result(10) == niceness()
