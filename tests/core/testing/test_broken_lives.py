"""Backends that fail in the long run or side by side: each is caught, and for that."""

from __future__ import annotations

import itertools
import mmap
import threading

import numpy as np

from twostroke.errors import BackendError
from twostroke.testing import echo
from twostroke.testing.echo_session import EchoBinding, EchoSession


def test_instances_that_share_state(break_echo, assert_caught):
    cache_arrays = []

    class Sharing(echo.EchoBackend):
        """The first caches of all instances are the same memory."""

        num_given = 0

        def allocate(self, shape, dtype, *, on_host=False):
            made = super().allocate(shape, dtype, on_host=on_host)
            if len(shape) == 4 and shape[0] == 4 and shape[2] > 8:
                if self.num_given == len(cache_arrays):
                    cache_arrays.append(made)
                made = cache_arrays[self.num_given]
                self.num_given += 1
            return made

    assert_caught(break_echo(backend=Sharing), "two-instances", "running beside another")


def test_a_library_that_cannot_be_opened_again(break_echo, assert_caught):
    opened = []

    def open_a_few_times(device, options):
        opened.append(device)
        if len(opened) > 5:  # by the checks before, and the first time of this one
            raise BackendError("the library was registered already")
        return echo.open_backend(device, options)

    spec = break_echo(open=open_a_few_times)
    assert_caught(spec, "reopen", "BackendError: the library was registered already", alone=False)


def test_a_session_that_never_closes(break_echo, assert_caught):
    class NeverClosed(EchoSession):
        def close(self):
            """Forgets nothing."""

    assert_caught(break_echo(session=NeverClosed), "closed", "a closed session still runs")


def test_a_session_bound_to_its_thread(break_echo, assert_caught):
    class Bound(EchoSession):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.thread = threading.get_ident()

    class InThread(EchoBinding):
        def run(self):
            if self._session.thread != threading.get_ident():
                raise RuntimeError("no context in this thread")
            super().run()

    spec = break_echo(session=Bound, binding=InThread)
    assert_caught(spec, "thread", "RuntimeError: no context in this thread")


def test_a_buffer_leaked_in_each_run(break_echo, assert_caught):
    leaked = []

    class Leaking(EchoBinding):
        def run(self):
            leaked.append(np.zeros_like(self._logits))
            super().run()

    assert_caught(break_echo(binding=Leaking), "memory-flat", "bytes of Python's memory")


def test_pages_leaked_in_each_run(break_echo, assert_caught):
    size, arena, runs = 1 << 15, mmap.mmap(-1, 1 << 26), itertools.count()

    class Leaking(EchoBinding):
        """Takes memory that Python's allocator knows nothing of."""

        def run(self):
            start = next(runs) * size % len(arena)
            arena[start : start + size] = b"x" * size
            super().run()

    spec = break_echo(binding=Leaking)
    assert_caught(spec, "memory-flat", "bytes of the process's memory")


def test_an_interruption_that_is_ignored(break_echo, assert_caught):
    class Deaf(EchoBinding):
        def interrupt(self):
            """Hears nothing."""

    assert_caught(break_echo(binding=Deaf), "cancel", "were read to the end although")


def test_an_interruption_that_hurts_the_next_run(break_echo, assert_caught):
    class Hurt(EchoSession):
        was_cut = False

    class Sticky(EchoBinding):
        """Once interrupted, the session's logits are spoilt for good."""

        def interrupt(self):
            super().interrupt()
            self._session.was_cut = True

        def run(self):
            super().run()
            self._logits += 0.5 * self._session.was_cut

    spec = break_echo(session=Hurt, binding=Sticky)
    assert_caught(spec, "cancel", "the run after one that was interrupted")
