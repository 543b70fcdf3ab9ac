from __future__ import annotations

import threading
from pathlib import Path

import pytest

from twostroke.file_lock import file_lock


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path, waiting, order = tmp_path / "lock", threading.Event(), []

    def second() -> None:
        with file_lock(path, waiting.set):
            order.append("second")

    with file_lock(path, lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_a_wait_can_be_given_up(tmp_path: Path) -> None:
    def give_up() -> None:
        raise TimeoutError

    path = tmp_path / "lock"
    with file_lock(path, lambda: None), pytest.raises(TimeoutError), file_lock(path, give_up):
        raise AssertionError("held twice")


def test_it_is_free_again_after_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ValueError), file_lock(tmp_path / "lock", lambda: None):
        raise ValueError
    with file_lock(tmp_path / "lock", lambda: pytest.fail("still held")):
        assert (tmp_path / "lock").exists()
