"""Folders of other tools, copied so that a test may damage them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of the folders of tests/data/foreign."""
    return lambda name: Path(shutil.copytree(FOREIGN / name, tmp_path / name))
