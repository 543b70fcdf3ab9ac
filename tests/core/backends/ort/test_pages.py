from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from twostroke.backends.ort import HostBuffer, allocate_host
from twostroke.backends.ort import pages as ort_pages
from twostroke.backends.protocol import GivesBack

SHAPE = (3, 2, 4096, 64)  # 1 MiB a head, 2 MiB a row

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


@pytest.fixture
def full() -> HostBuffer:
    buffer = allocate_host(SHAPE, "float32")
    buffer.read()[:] = 7
    return buffer


@linux_only
def test_what_lies_behind_the_tokens_of_a_row_goes_and_the_rest_stays(full):
    assert isinstance(full, GivesBack)
    assert full.rows(1, 1).give_back(1000)
    values = full.read()
    assert (values[[0, 2]] == 7).all()
    assert (values[1, :, :1000] == 7).all()
    page_tokens = mmap.PAGESIZE // (64 * 4)
    assert (values[1, :, 1000 + page_tokens : -page_tokens] == 0).all()


@linux_only
def test_the_system_has_the_memory_back(full):
    before = resident_kib()
    full.rows(0, 1).give_back(0)
    full.rows(1, 1).give_back(2048)
    fallen = before - resident_kib()
    assert 2.5 * 1024 < fallen < 3.5 * 1024  # a row and a half of 2 MiB each
    full.read()[0] = 3
    assert (full.read()[0] == 3).all()  # it can be written as before


@linux_only
def test_a_view_in_another_shape_gives_back_its_own_part(full):
    before = resident_kib()
    assert full.reshaped((1, 1, 8192, 64)).give_back(8192)
    assert before - resident_kib() < 512
    assert full.reshaped((1, 1, 8192, 64)).give_back(0)
    values = full.read()
    assert (values[0] == 0).all()
    assert (values[1:] == 7).all()


def test_small_buffers_have_no_pages_of_their_own():
    buffer = allocate_host((1, 2, 8, 4), "float32")
    buffer.read()[:] = 7
    assert not buffer.give_back(0)
    assert (buffer.read() == 7).all()


def test_where_the_system_takes_no_advice_nothing_is_returned(full, monkeypatch):
    monkeypatch.setattr(ort_pages, "_ADVICE", None)
    assert not full.give_back(0)
    assert (full.read() == np.float32(7)).all()
