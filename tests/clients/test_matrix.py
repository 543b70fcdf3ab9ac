"""The matrix counts what was right, and nothing that nobody reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from . import matrix
from .matrix import Cell

HERE = Path(__file__).parent
CELLS = [Cell("a (Node)", "chat", "whole"), Cell("a (Node)", "chat", "streamed")]


def test_every_client_has_a_program_and_every_program_a_client():
    assert list(matrix.CLIENTS) == list(matrix.PROGRAMS)
    here = {path.relative_to(HERE).as_posix() for path in HERE.glob("*/*.*") if path.is_file()}
    programs = {name for name in here if name.endswith((".py", ".mjs")) and "asking" not in name}
    assert programs == set(matrix.PROGRAMS.values())


@pytest.mark.parametrize("client", matrix.CLIENTS)
def test_a_program_reports_the_cells_that_are_expected(client):
    program = (HERE / matrix.PROGRAMS[client]).read_text(encoding="utf-8")
    for cell in matrix.expected([client]):
        if cell.surface == matrix.DOCUMENTED:
            continue
        assert f'cell("{cell.surface}", "{cell.way}"' in program, cell


def test_every_client_is_told_how_to_get_here():
    page = HERE.parents[1].joinpath("docs/clients.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(matrix.CLIENTS)


def test_reports_are_told_from_what_a_client_prints():
    right = json.dumps({"surface": "chat", "way": "whole", "fault": None})
    wrong = json.dumps({"surface": "chat", "way": "streamed", "fault": "it broke"})
    reports = matrix.read_reports("a (Node)", f"hello\n{right}\n{wrong}\n")
    assert reports == {CELLS[0]: None, CELLS[1]: "it broke"}


def test_all_right():
    lines, all_right = matrix.table(CELLS, dict.fromkeys(CELLS))
    assert all_right
    assert lines[1].split() == ["a", "(Node)", "chat", "right", "right"]
    assert lines[-1] == "clients: 2 of 2"


@pytest.mark.parametrize(
    ("reports", "word"),
    [({CELLS[0]: None}, "missing"), ({CELLS[0]: None, CELLS[1]: "it broke"}, "wrong")],
)
def test_what_is_missing_or_wrong_does_not_count(reports, word):
    lines, all_right = matrix.table(CELLS, reports)
    assert not all_right
    assert lines[1].split()[-2:] == ["right", word]
    assert ("it broke" in lines) == (word == "wrong")
    assert lines[-1] == "clients: 1 of 2"
