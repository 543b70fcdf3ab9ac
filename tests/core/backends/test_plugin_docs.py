"""The guide for plugin authors names what the code has."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from twostroke import errors
from twostroke.backends import hookspecs, ort, protocol

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "plugin-authors.md").read_text(encoding="utf-8")


def test_every_hook_is_named():
    hooks = [name for name in vars(hookspecs) if name.startswith("twostroke_")]
    assert hooks
    for hook in hooks:
        assert f"`{hook}`" in GUIDE or f"def {hook}(" in GUIDE


@pytest.mark.parametrize("name", ["Backend", "Buffer", "Session", "Binding"])
def test_every_member_of_the_protocol_is_named(name):
    (row,) = [line for line in GUIDE.splitlines() if line.startswith(f"| `{name}` |")]
    named = set(re.findall(r"`(\w+)`", row.split("|")[2]))
    members = {m for m, _ in inspect.getmembers(getattr(protocol, name)) if not m.startswith("_")}
    assert named == members


def test_the_spec_in_the_guide_has_fields_that_exist():
    block = GUIDE.split("BackendSpec(\n")[1].split("        )\n")[0]
    given = re.findall(r"^\s+(\w+)=", block, re.MULTILINE)
    fields = inspect.signature(protocol.BackendSpec).parameters
    assert set(given) <= fields.keys()
    required = {name for name, field in fields.items() if field.default is field.empty}
    assert required <= set(given)
    assert f"api_version={protocol.API_VERSION}," in block


def test_the_names_of_the_shared_ground_and_the_errors_exist():
    ground = GUIDE.split("## On ONNX Runtime")[1].split("**Prove")[0]
    for name in re.findall(r"`(\w+)(?:\(\))?`", ground.split("|---|---|")[1]):
        if not name.startswith("get_"):
            assert hasattr(ort, name), name
    table = GUIDE.split("## Errors")[1]
    for name in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE):
        assert issubclass(getattr(errors, name), errors.TwostrokeError)


def test_the_example_is_a_package_of_its_own_with_the_entry_point():
    folder = ROOT / "examples" / "backend_plugin"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["twostroke"] == {"coolcpu": "coolcpu"}
    assert (folder / "coolcpu.py").is_file()
