"""The guide for authors of plugins names what the code has, with its exact signatures."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest

from twostroke import errors
from twostroke.backends import capabilities, hookspecs, ort, protocol, reduced
from twostroke.testing.kit import CHECKS

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = [ast.parse(block) for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)]


def members(cls: ast.ClassDef) -> dict[str, str]:
    """The signatures of a protocol's members; an attribute stands for a property."""
    told = {}
    for member in cls.body:
        if isinstance(member, ast.AnnAssign):
            told[ast.unparse(member.target)] = ast.unparse(member.annotation)
        elif isinstance(member, ast.FunctionDef):
            returned = ast.unparse(member.returns)
            is_property = any(ast.unparse(d) == "property" for d in member.decorator_list)
            signature = f"({ast.unparse(member.args)}) -> {returned}"
            told[member.name] = returned if is_property else signature
    return told


def protocols(tree: ast.Module) -> dict[str, dict[str, str]]:
    return {
        node.name: members(node)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(b) == "Protocol" for b in node.bases)
    }


def in_guide() -> dict[str, dict[str, str]]:
    return {name: told for block in BLOCKS for name, told in protocols(block).items()}


@pytest.mark.parametrize("module", [protocol, capabilities, reduced])
def test_every_protocol_stands_with_its_exact_signatures(module):
    written = protocols(ast.parse(Path(module.__file__).read_text(encoding="utf-8")))
    assert written
    told = in_guide()
    for name, signatures in written.items():
        assert told.get(name) == signatures, f"docs/plugins.md differs from the code for {name}"


def test_the_guide_has_no_protocol_that_is_gone():
    for name in in_guide():
        assert any(hasattr(module, name) for module in (protocol, capabilities, reduced)), name


def test_the_hooks_stand_with_their_exact_signatures():
    told = {
        node.name: f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
        for block in BLOCKS
        for node in block.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("twostroke_")
        if not node.decorator_list
    }
    written = {
        name: str(inspect.signature(function)).replace("'", "")
        for name, function in vars(hookspecs).items()
        if name.startswith("twostroke_")
    }
    assert told == written


def test_the_spec_has_every_field_there_is():
    (call,) = [
        node
        for block in BLOCKS
        for node in ast.walk(block)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "BackendSpec"
    ]
    assert {k.arg for k in call.keywords} == set(inspect.signature(protocol.BackendSpec).parameters)
    assert f"api_version={protocol.API_VERSION}," in GUIDE
    assert f"this one is {protocol.API_VERSION}." in GUIDE


def test_the_names_of_the_shared_ground_and_the_errors_exist():
    ground = GUIDE.split("## On ONNX Runtime")[1].split("**Prove")[0]
    for name in re.findall(r"`(\w+)(?:\(\))?`", ground.split("|---|---|")[1]):
        if not name.startswith("get_"):
            assert hasattr(ort, name), name
    table = GUIDE.split("## Errors")[1].split("## The kit")[0]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert names
    for name in names:
        assert issubclass(getattr(errors, name), errors.TwostrokeError)


def test_every_check_of_the_kit_stands_with_what_it_proves():
    table = GUIDE.split("## The kit")[1].split("## API versions")[0]
    told = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", table, re.MULTILINE)
    assert told == [(check.name, check.about) for check in CHECKS]


def test_the_example_is_a_package_of_its_own_with_the_entry_point():
    folder = ROOT / "examples" / "backend_plugin"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["twostroke"] == {"coolcpu": "coolcpu"}
    assert (folder / "coolcpu.py").is_file()
