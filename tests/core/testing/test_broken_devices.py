"""Backends whose probe, options or memory are broken: each is caught, and for that."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from twostroke.backends.protocol import API_VERSION, ProbeResult
from twostroke.errors import BackendError
from twostroke.testing import echo
from twostroke.testing.echo_device import EchoDeviceBuffer

DEVICE = echo.probe().devices[0]


def raising_probe():
    raise OSError("driver 7 is in the way")


@pytest.mark.parametrize(
    ("probe", "fault"),
    [
        (raising_probe, "the probe raised OSError: driver 7 is in the way"),
        (ProbeResult, "no device, and no reason why"),
        (lambda: ProbeResult((DEVICE, DEVICE)), "two devices have one index: [0, 0]"),
        (lambda: [DEVICE], "the probe answered ["),
    ],
)
def test_a_probe(break_echo, assert_caught, probe, fault):
    assert_caught(break_echo(probe=probe), "probe", fault, alone=probe is raising_probe)


def test_devices_that_do_not_open(break_echo, assert_caught):
    second = dataclasses.replace(DEVICE, index=1, name="the other")

    def open_first(device, options):
        if device.index:
            raise BackendError("out of order")
        return echo.open_backend(device, options)

    spec = break_echo(probe=lambda: ProbeResult((DEVICE, second)), open=open_first)
    assert_caught(spec, "devices", "device 1 (the other), and it does not open")


def test_a_device_that_opens_once_only(break_echo, examine):
    opened = []

    def open_once(device, options):
        opened.append(device)
        if len(opened) > 1:
            raise OSError("the device is in use")
        return echo.open_backend(device, options)

    card = examine(break_echo(open=open_once))
    reasons = {result.check: result.reason for result in card.results}
    assert set(card.failed) == {"options", "memory"}
    assert reasons["memory"] == "the device does not open: OSError: the device is in use"
    assert reasons["decode"] == "the device does not open, as was said before"


def test_another_device_than_asked_for(break_echo, assert_caught):
    class First(echo.EchoBackend):
        def __init__(self, device, options):
            super().__init__(dataclasses.replace(device, index=7), options)

    assert_caught(break_echo(backend=First), "devices", "asked for device 0, it opened 7")


def test_a_backend_that_lacks_a_member(break_echo, assert_caught):
    class Lacking(echo.EchoBackend):
        def __init__(self, device, options):
            super().__init__(device, options)
            del self.touches_lazily

    fault = "the backend lacks touches_lazily"
    assert_caught(break_echo(backend=Lacking), "devices", fault, alone=False)


def test_a_backend_that_cannot_be_closed(break_echo, assert_caught):
    class Stuck(echo.EchoBackend):
        def close(self):
            raise OSError("the device is busy")

    assert_caught(break_echo(backend=Stuck), "reopen", "the device is busy", alone=False)


def test_another_api_version(break_echo, assert_caught):
    spec = break_echo(api_version=API_VERSION + 1)
    assert_caught(spec, "spec", f"it speaks API version {API_VERSION + 1}")


def refusing(error):
    def open_refusing(device, options):
        if set(options) - {"row_views"}:
            raise error
        return echo.open_backend(device, options)

    return open_refusing


def swallow(device, options):
    return echo.open_backend(device, {})


@pytest.mark.parametrize(
    ("opens", "fault"),
    [
        (swallow, "the unknown option 'no_such_option' was taken without a word"),
        (refusing(BackendError("bad option")), "does not name the option: bad option"),
        (refusing(BackendError("no_such_option is bad")), "does not name the allowed row_views"),
        (refusing(ValueError("no_such_option")), "refused with ValueError, not BackendError"),
    ],
)
def test_options(break_echo, assert_caught, opens, fault):
    assert_caught(break_echo(open=opens), "options", fault, options={"row_views": True})


class DirtyMemory(echo.EchoBackend):
    def allocate(self, shape, dtype, *, on_host=False):
        return echo.EchoViews(np.ones(shape, dtype), has_row_views=True)


class HalfBuffer(echo.EchoViews):
    """Keeps what is written in half precision."""

    def write(self, values):
        super().write(values.astype("float16").astype(values.dtype))


class HalfMemory(echo.EchoBackend):
    def allocate(self, shape, dtype, *, on_host=False):
        kind = HalfBuffer if dtype == "float32" else echo.EchoViews
        return kind(np.zeros(shape, dtype), has_row_views=True)


class DoubleBuffer(echo.EchoViews):
    """Hands keys and values over in another dtype than it says."""

    def read(self):
        return self.values.astype("float64")


class DoubleMemory(echo.EchoBackend):
    def allocate(self, shape, dtype, *, on_host=False):
        kind = DoubleBuffer if dtype == "float32" else echo.EchoViews
        return kind(np.zeros(shape, dtype), has_row_views=True)


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        (DirtyMemory, "is not all zeros at first"),
        (HalfMemory, "what was written does not come back"),
        (DoubleMemory, "is read as float64, not float32"),
    ],
)
def test_memory(break_echo, assert_caught, backend, fault):
    assert_caught(break_echo(backend=backend), "memory", fault, alone=False)


class CopiedRows(echo.EchoViews):
    def rows(self, start, count):
        return CopiedRows(self.values[start : start + count].copy(), has_row_views=True)


class CopiedShapes(echo.EchoViews):
    def reshaped(self, shape):
        return CopiedShapes(np.zeros(shape, self.dtype), has_row_views=True)


@pytest.mark.parametrize(
    ("kind", "check"), [(CopiedRows, "row-views"), (CopiedShapes, "shape-views")]
)
def test_views_that_copy(break_echo, assert_caught, kind, check):
    class Copying(echo.EchoBackend):
        def allocate(self, shape, dtype, *, on_host=False):
            return kind(np.zeros(shape, dtype), has_row_views=True)

    assert_caught(break_echo(backend=Copying), check, "wrote elsewhere", alone=False)


class WrongEnd(EchoDeviceBuffer):
    """Answers the last positions for the first."""

    def read_front(self, num_positions):
        return self.values[:, :, -num_positions:].copy()


class ShortFront(EchoDeviceBuffer):
    """Leaves out the last of the positions that it copies."""

    def copy_front(self, source, num_positions):
        return super().copy_front(source, num_positions - 1)


@pytest.mark.parametrize(
    ("kind", "fault"), [(WrongEnd, "it reads another front"), (ShortFront, "it copies another")]
)
def test_fronts(break_echo, assert_caught, kind, fault):
    class Backend(echo.EchoBackend):
        def allocate(self, shape, dtype, *, on_host=False):
            made = super().allocate(shape, dtype, on_host=on_host)
            return made if on_host else kind(made.values, self.memory, has_row_views=True)

    spec = break_echo(backend=Backend)
    assert_caught(spec, "fronts", fault, alone=False, options={"lazy": False})
