from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from twostroke.cli.options import start_logging

TALK = """
import logging, sys
from twostroke.cli.options import start_logging
start_logging(sys.argv[1], timestamps=True)
for name in ("twostroke.server", "twostroke_backends.prepacked", "twostroke_export", "onnx_ir.x"):
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)("%s", level)
"""


@pytest.mark.parametrize(
    ("level", "ours", "others"),
    [
        ("debug", ["debug", "info", "warning", "error"], ["warning", "error"]),
        ("info", ["info", "warning", "error"], ["warning", "error"]),
        ("warning", ["warning", "error"], ["warning", "error"]),
        ("error", ["error"], ["error"]),
    ],
)
def test_the_level_is_that_of_our_own_loggers(level, ours, others):
    command = [sys.executable, "-c", TALK, level]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    heard: dict[str, list[str]] = {}
    for line in told.splitlines():
        name, _, said = line.split(" ", 3)[3].partition(": ")
        heard.setdefault(name, []).append(said)
    assert heard.pop("onnx_ir.x") == others
    assert list(heard.values()) == [ours] * 3


def test_other_loggers_are_left_alone():
    before = logging.getLogger("onnx_ir").level
    start_logging("info")
    assert logging.getLogger("onnx_ir").level == before
