"""The scheduler is policy only: nothing it imports may know arrays or a runtime."""

from __future__ import annotations

import ast
from pathlib import Path

import twostroke

ROOT = Path(twostroke.__file__).parent.parent


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def closure(module: str) -> set[str]:
    """Every module that `module` imports, directly or not."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = (ROOT / name.replace(".", "/")).with_suffix(".py")
        if name in found:
            continue
        found.add(name)
        if path.is_file():
            waiting += imported_modules(path)
    return found


def test_the_scheduler_imports_no_arrays_and_no_runtime():
    found = closure("twostroke.engine.scheduler")
    assert {"twostroke.engine.kv_cache", "twostroke.engine.sequence", "twostroke.types"} <= found
    outside = {name.split(".")[0] for name in found} - {"twostroke"}
    assert outside <= {
        "__future__",
        "array",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "itertools",
        "typing",
    }


def test_the_walk_sees_what_it_forbids():
    assert "numpy" in closure("twostroke.engine.stepper")
