"""The documentation is held to the code: commands, flags, settings, files, imports and links."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import twostroke
from twostroke.cli.main import build_parser
from twostroke.config.json_schema import lookup

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
EXAMPLES = sorted(p for p in (ROOT / "examples").rglob("*") if p.suffix in (".md", ".sh", ".yaml"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str, *languages: str) -> Iterator[str]:
    return (body for language, body in FENCE.findall(text) if language in languages)


def commands(text: str) -> Iterator[list[str]]:
    """Every `twostroke …` that a page tells a reader to run, in fences and in backticks."""
    lines = [line for block in blocks(text, "bash", "sh", "console") for line in block.splitlines()]
    prose = FENCE.sub("", text)
    lines += re.findall(r"`([^`\n]+)`", prose)
    for line in lines:
        line = line.strip().removeprefix("$ ")
        words = line.split("#")[0].split()
        if words and re.fullmatch(r"(\S*/)?twostroke", words[0]):
            yield shlex.split(line, comments=True)[1:]


def parser_for(arguments: list[str]) -> argparse.ArgumentParser:
    """The parser of the command (and action) that the arguments name.

    Raises:
        KeyError: there is no such command.
    """
    parser, rest = build_parser(), list(arguments)
    while True:
        subparsers = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        while rest and rest[0] == "--debug":
            rest.pop(0)
        if not subparsers or not rest:
            return parser
        choice = rest.pop(0)
        if choice.isupper() or choice == "|":
            return parser  # `twostroke COMMAND --help`, `twostroke serve | export`
        parser = subparsers[0].choices[choice]


def check_command(arguments: list[str]) -> None:
    parser = parser_for(arguments)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for word in arguments:
        flag = word.strip("[]").split("=")[0]
        if flag.startswith("--"):
            assert flag in flags, f"twostroke {shlex.join(arguments)}: there is no {flag}"
    for position, word in enumerate(arguments[:-1]):
        if word == "--set" and re.match(r"[a-z_.0-9-]+=", arguments[position + 1]):
            check_setting(arguments[position + 1].split("=")[0])


def check_setting(dotted: str) -> None:
    parts = dotted.split(".")
    if parts[0] == "models" and len(parts) > 1:
        parts[1] = "0"
    path = tuple(int(part) if part.isdecimal() else part for part in parts)
    below_options = "options" in path
    assert below_options or lookup(path) is not None, f"there is no setting {dotted}"


def settings(value, path=()) -> Iterator[tuple]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield (*path, key)
            if key != "options":
                yield from settings(child, (*path, key))
    elif isinstance(value, list):
        for child in value:
            yield from settings(child, (*path, 0))


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=name_of)
def test_commands_and_flags_exist(page):
    for arguments in commands(page.read_text(encoding="utf-8")):
        check_command(arguments)


def test_the_pages_show_commands():
    assert len(list(commands((ROOT / "README.md").read_text(encoding="utf-8")))) >= 5


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_in_yaml_exist(page):
    for block in blocks(page.read_text(encoding="utf-8"), "yaml"):
        value = yaml.safe_load(block)
        if not isinstance(value, dict) or not set(value) & {"server", "models", "scheduler"}:
            continue
        for path in settings(value):
            assert lookup(path) is not None, f"{name_of(page)}: there is no setting {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    shown = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(shown) <= targets


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=name_of)
def test_variables_of_the_environment_exist(page):
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for root in ("core", "plugins", "exports", "tests")
        for path in (ROOT / root).rglob("*.py")
    )
    # Names inside ${…} belong to the deployment, not to us.
    text = re.sub(r"\$\{[^}]*\}|TWOSTROKE_KEY|TWOSTROKE_BACKEND", "", page.read_text("utf-8"))
    for name in set(re.findall(r"TWOSTROKE_[A-Z_]+", text)):
        assert name in code, f"{name_of(page)} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_names_exist(page):
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        uses = [line for line in block.splitlines() if not line.startswith(("from ", "import "))]
        for name in re.findall(r"\btwostroke\.([A-Za-z]+)[.(]", "\n".join(uses)):
            assert hasattr(twostroke, name), f"{name_of(page)} calls twostroke.{name}"


def test_every_command_stands_in_the_readme():
    from twostroke.cli.main import COMMANDS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"`twostroke ([a-z| ]+\|[a-z| ]+)`", text)
    names = [command.__name__.rpartition(".")[2] for command in COMMANDS]
    assert listed.replace(" ", "").split("|") == names


def test_every_extra_of_the_readme_exists():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [
        name for names in re.findall(r"\.?\[([a-z,-]+)\]\"", text) for name in names.split(",")
    ]
    assert shown
    assert set(shown) <= set(extras)


def test_the_checks_find_what_they_look_for():
    text = "Run `twostroke serve --fast`.\n```bash\ntwostroke nothing\n```\n"
    wrong_command, wrong_flag = sorted(commands(text), key=len)
    with pytest.raises(KeyError):
        check_command(wrong_command)
    with pytest.raises(AssertionError, match="no --fast"):
        check_command(wrong_flag)
    with pytest.raises(AssertionError, match=r"no setting server\.prot"):
        check_command(["serve", "--set", "server.prot=1"])
