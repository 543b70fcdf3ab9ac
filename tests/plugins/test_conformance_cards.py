"""`make conformance`: what it prints, what surprises it, and what it exits with."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from twostroke.testing.kit import Card, Outcome, Result

SCRIPT = runpy.run_path(str(Path(__file__).parent / "conformance_cards.py"))
Target, main, surprises = SCRIPT["Target"], SCRIPT["main"], SCRIPT["surprises"]

PLUGIN = """
import dataclasses, os
from twostroke.backends import ProbeResult, hookimpl
from twostroke.testing import echo

SPEC = echo.twostroke_backends()[0]

@hookimpl
def twostroke_backends():
    nothing = ProbeResult(reason="it is at home.")
    return [
        dataclasses.replace(SPEC, name="odd", open=lambda device, options: os._exit(3)),
        dataclasses.replace(SPEC, name="away", probe=lambda: nothing),
    ]
"""


@pytest.fixture
def targets(tmp_path):
    (tmp_path / "odd_plugin.py").write_text(PLUGIN, encoding="utf-8")
    flags = ("--plugin", "odd_plugin", "--check", "options")
    return tuple(Target(name, flags, tmp_path) for name in ("odd", "echo", "away"))


def test_a_crash_is_a_card_that_fails(targets, capsys):
    assert main(targets, {}) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  process          failed   exit code 3: nothing was said" in lines
    assert "away: not here: it is at home." in lines
    assert lines[-2:] == ["odd: process fails", "conformance: 1 of 2 backends"]


def test_a_known_fault_is_told_with_its_owner(targets, capsys):
    known = {("odd", "process"): "it ends the process; Odd Ltd"}
    assert main(targets, known) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  process: known: it ends the process; Odd Ltd" in lines
    assert lines[-1] == "conformance: 1 of 2 backends"


def test_a_fault_that_is_mended_is_told():
    card = Card("odd", "a card", {}, (Result("decode", Outcome.PASSED),))
    assert surprises(card, {("odd", "decode"): "wrong; Odd Ltd"}) == [
        "odd: decode passes; take it out of the known faults"
    ]
    absent = Card("odd", "", {}, (), "it is at home.")
    assert surprises(absent, {("odd", "decode"): "wrong; Odd Ltd"}) == []
