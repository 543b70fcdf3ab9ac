"""`twostroke conformance`: which backends, which options, what it prints and exits with."""

from __future__ import annotations

import json
import sys

import pytest

from twostroke.cli import main

PLUGIN = """
import dataclasses
from twostroke.backends import ProbeResult, hookimpl
from twostroke.testing import echo

SPEC = echo.twostroke_backends()[0]

def open_odd(device, options):
    return echo.open_backend(device, {})

@hookimpl
def twostroke_backends():
    nothing = ProbeResult(reason="it is at home.")
    return [
        dataclasses.replace(SPEC, name="odd", open=open_odd),
        dataclasses.replace(SPEC, name="away", probe=lambda: nothing),
    ]
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A module in the working directory that is no installed plugin."""
    (tmp_path / "odd_plugin.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "odd_plugin"
    sys.modules.pop("odd_plugin", None)


def test_a_backend_that_passes(capsys):
    assert main(["conformance", "echo", "--options", "row_views=false"]) == 0
    first, *rows, last, _ = capsys.readouterr().out.splitlines()
    assert first == "echo on echo (row_views=False)"
    assert "  row-views        skipped  the backend says that it has no views of rows" in rows
    assert "  decode           passed   largest relative difference 0" in rows
    assert last.startswith("echo: passes (")


def test_several_backends_from_a_module_that_is_not_installed(capsys, plugin):
    arguments = ["conformance", "odd", "echo", "away", "--plugin", plugin, "--check", "options"]
    assert main(arguments) == 1
    assert capsys.readouterr().out.splitlines() == [
        "odd on echo",
        "  options          failed   the unknown option 'no_such_option' was taken without a word",
        "odd: fails (1 failed)",
        "",
        "echo on echo",
        "  options          passed",
        "echo: passes (1 passed)",
        "",
        "away on no device",
        "away: not here: it is at home.",
        "",
        "conformance: 1 of 2 backends",
    ]


def test_the_card_as_json(capsys, plugin):
    arguments = ["conformance", "away", "--plugin", f"{plugin}.py", "--json"]
    assert main(arguments) == 2  # nothing was proved
    (card,) = json.loads(capsys.readouterr().out)["cards"]
    assert (card["backend"], card["verdict"], card["absence"]) == (
        "away",
        "absent",
        "it is at home.",
    )


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["ecko"], "There is no backend 'ecko'. Did you mean 'echo'?"),
        (["auto"], "'auto' is no backend of its own; name one of cpu,"),
        (["echo", "--check", "speed"], "there is no check 'speed'; the checks are probe, spec,"),
        (["echo", "--options", "threads"], "--options threads: expected NAME=VALUE"),
        (["echo", "--options", "threads=["], "--options threads=[: not a value that YAML can read"),
        (["echo", "--plugin", "no_such_module"], "--plugin no_such_module cannot be imported"),
    ],
)
def test_what_is_wrong_is_said(capsys, monkeypatch, arguments, fault):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["conformance", *arguments]) == 2
    assert f"twostroke: error: {fault}" in capsys.readouterr().err


def test_a_bundle_of_ones_own(capsys, echo_bundle):
    """It has no reference, and echo is the only backend that can read it."""
    assert main(["conformance", "echo", "--bundle", str(echo_bundle), "--check", "decode"]) == 0
    assert "  decode           passed" in capsys.readouterr().out
