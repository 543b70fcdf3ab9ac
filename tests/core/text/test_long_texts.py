"""Which thread does what with a long text."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from twostroke.bundle import open_bundle
from twostroke.testing import make_echo_bundle
from twostroke.text import Tokenizer, long_texts
from twostroke.text.long_texts import LONG_CHARACTERS

LONG = "a" * LONG_CHARACTERS


class Seen:
    """A tokenizer of the package that notes who calls it, and who reads what it answers."""

    def __init__(self) -> None:
        self.encoding: list[str] = []
        self.reading: list[str] = []
        self.niceness = 0

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        assert not add_special_tokens
        self.encoding.append(threading.current_thread().name)
        if sys.platform == "linux":
            self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return [self]

    @property
    def ids(self) -> list[int]:
        self.reading.append(threading.current_thread().name)
        return [1, 2, 3]


def test_only_the_native_part_of_long_texts_is_done_by_the_thread_that_stands_back() -> None:
    seen: Any = Seen()
    assert long_texts.encode(seen, LONG).ids == [1, 2, 3]
    me = threading.current_thread().name
    assert seen.encoding[0].startswith("twostroke-tokenise")
    assert seen.reading == [me]


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_that_thread_has_a_lower_priority() -> None:
    seen: Any = Seen()
    long_texts.encode(seen, LONG)
    assert seen.niceness > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_short_texts_stay_in_their_thread() -> None:
    seen: Any = Seen()
    long_texts.encode(seen, LONG[1:])
    assert seen.encoding == [threading.current_thread().name]


def test_a_long_text_has_the_ids_of_its_parts(tmp_path: Path) -> None:
    # One token is one byte here, so that parts can be encoded apart.
    tokenizer = Tokenizer.open(open_bundle(make_echo_bundle(tmp_path / "echo")))
    text = "many words, ä few of them stränge " * 1200
    assert len(text) >= LONG_CHARACTERS
    parts = [text[start : start + 1000] for start in range(0, len(text), 1000)]
    expected = [i for part in parts for i in tokenizer.encode(part, special=True, add_bos=False)]
    assert tokenizer.encode(text, special=True, add_bos=False) == expected
