"""Commands that run inside of the test's own process leave no trace in it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from twostroke.cli.options import OWN_LOGGERS


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in OWN_LOGGERS]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
