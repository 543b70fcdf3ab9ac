"""Signals reach the process whatever the event loop can do: Unix's way, and Windows'."""

import asyncio
import os
import signal
import sys
from unittest.mock import Mock

import pytest

from twostroke.server.signals import StopSignals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent Unix's way")


@pytest.mark.parametrize("loop_has_handlers", [True, False], ids=["unix", "windows"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_asks_and_the_second_insists(monkeypatch, loop_has_handlers, number):
    if not loop_has_handlers:
        missing = Mock(side_effect=NotImplementedError)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "add_signal_handler", missing)
        monkeypatch.setattr(loop, "remove_signal_handler", missing)
    before = signal.getsignal(number)
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(signals.stop.wait(), 60)
        assert not signals.hurry.is_set()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(signals.hurry.wait(), 60)
        assert signals.number == number
        assert signal.getsignal(number) == signal.SIG_DFL, "a third one kills"
    assert signal.getsignal(number) == before


async def test_under_nohup_a_closed_terminal_means_nothing():
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(signals.stop.wait(), 60)
            assert signals.number == signal.SIGTERM
            assert not signals.hurry.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)


async def test_sighup_asks_for_a_reload_and_is_no_stop():
    asked = asyncio.Event()
    with StopSignals(asked.set) as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(asked.wait(), 60)
        assert not signals.stop.is_set()


async def test_a_terminal_that_was_closed_is_a_stop(monkeypatch):
    asked = asyncio.Event()
    monkeypatch.setattr("twostroke.server.signals._has_terminal", lambda: True)
    with StopSignals(asked.set) as signals:
        monkeypatch.setattr("twostroke.server.signals._has_terminal", lambda: False)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(signals.stop.wait(), 60)
        assert not asked.is_set()
