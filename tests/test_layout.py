"""The rules that keep the code readable, and the walls between its rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOTS = ("core", "plugins", "exports", "tests", "examples")
FILES = sorted(p for root in ROOTS for p in (ROOT / root).rglob("*.py"))
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module name that a tree imports, also inside functions and by a literal name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant))


def long_functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            length = (node.end_lineno or first) - first + 1
            if length > MAX_FUNCTION_LINES:
                yield node.name, length


def bare_ignores(text: str) -> list[str]:
    return [
        line
        for line in text.splitlines()
        if re.search(r"#\s*type:\s*ignore(?!\[)", line) or re.search(r"#\s*noqa(?!:)", line)
    ]


def files_under(*folders: str) -> list[Path]:
    return [p for p in FILES if relative(p).startswith(folders)]


def test_there_are_files_in_every_root():
    for root in ("core/twostroke/", "plugins/", "exports/", "tests/"):
        assert files_under(root), root


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_file_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES, f"{relative(path)} is too long; split it"
    assert list(long_functions(ast.parse(text))) == []


@pytest.mark.parametrize("path", files_under("core/", "plugins/", "exports/"), ids=relative)
def test_every_ignore_names_its_rule(path):
    assert bare_ignores(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", files_under("core/"), ids=relative)
def test_core_imports_no_backend_and_no_exporter(path):
    names = imported(ast.parse(path.read_text(encoding="utf-8")))
    assert [n for n in names if n.split(".")[0] in ("twostroke_backends", "twostroke_export")] == []


SERVING = [p for p in files_under("core/", "plugins/") if "core/twostroke/testing/" not in str(p)]


@pytest.mark.parametrize("path", SERVING, ids=relative)
def test_serving_needs_no_export_package(path):
    heavy = {"torch", "transformers", "optimum", "onnx", "onnxscript", "onnx_ir", "gguf"}
    names = imported(ast.parse(path.read_text(encoding="utf-8")))
    assert [n for n in names if n.split(".")[0] in heavy] == []


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [
        ("core/twostroke/types.py", r"twostroke\.(?!errors|timings)"),
        ("core/twostroke/errors.py", r"twostroke\."),
        ("core/twostroke/bundle/", r"onnxruntime|twostroke\.(engine|server|backends|model)"),
        ("core/twostroke/text/", r"twostroke\.(engine|server|backends|model)|aiohttp"),
        ("core/twostroke/engine/", r"twostroke\.(server|text|model|config)|onnxruntime|aiohttp"),
        ("core/twostroke/model", r"twostroke\.(server|cli)|aiohttp"),
        ("core/twostroke/server/", r"onnxruntime|twostroke\.(cli|engine\.(scheduler|runner))"),
    ],
)
def test_rooms_keep_to_their_walls(room, forbidden):
    for path in files_under(room):
        names = imported(ast.parse(path.read_text(encoding="utf-8")))
        crossed = [name for name in names if re.match(forbidden, name)]
        assert crossed == [], f"{relative(path)} imports {crossed}"


def test_no_work_left_for_later():
    words = ("TO" + "DO", "FIX" + "ME", "raise " + "NotImplemented", "x" + "fail")
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert [word for word in words if word in text] == [], relative(path)


def test_the_checks_find_what_they_look_for():
    source = "def long():\n" + "    pass\n" * MAX_FUNCTION_LINES
    assert list(long_functions(ast.parse(source))) == [("long", MAX_FUNCTION_LINES + 1)]
    lazily = "def f():\n    from a.b import c\n    importlib.import_module('d.e')\n"
    assert list(imported(ast.parse(lazily))) == ["a.b", "d.e"]
    assert bare_ignores("x = 1  # type: " + "ignore\ny = 2  # type: " + "ignore[misc]") != []
    assert bare_ignores("y = 2  # type: " + "ignore[misc]  # noqa: E501") == []
