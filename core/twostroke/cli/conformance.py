"""`twostroke conformance`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostroke.cli import options
from twostroke.errors import BackendError, ConfigError, PluginError

if TYPE_CHECKING:
    from twostroke.backends.discovery import Plugins
    from twostroke.backends.protocol import BackendSpec
    from twostroke.testing.kit import Card, Check, Subject

ABOUT = """\
Runs the conformance kit on backends and prints a report card for each: what passed, what failed and
why, and what was measured. The kit brings tiny models of its own in both dialects and holds the
backend against plain numpy and against the CPU.

Exits with 0 where every backend that finds a device passes, 1 where one fails, and 2 where none
finds a device. The backend `echo` needs no hardware and shows what a card looks like."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "conformance",
        run,
        summary="prove that a backend serves the engine rightly",
        about=ABOUT,
        examples=(
            "twostroke conformance cpu",
            "twostroke conformance cuda --precision fp16",
            "twostroke conformance mine --plugin my_module --options threads=2",
        ),
    )
    parser.add_argument("backends", metavar="BACKEND", nargs="+", help="see `twostroke plugins`")
    parser.add_argument(
        "--options",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="options of the backend, as in the YAML",
    )
    parser.add_argument("--device", metavar="N", type=int, default=0, help="default: 0")
    parser.add_argument(
        "--bundle",
        metavar="DIR",
        type=Path,
        help="test on this bundle instead of the kit's; the CPU's logits are the reference",
    )
    parser.add_argument(
        "--precision", choices=("fp32", "fp16"), default="fp32", help="of the kit's graphs"
    )
    parser.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        help="how far logits may differ, as a share of the largest; default: 0.001 in fp32, "
        "0.02 in half precision, 0.05 where weights are quantised",
    )
    parser.add_argument(
        "--check", metavar="NAME", action="append", help="only this check; repeatable"
    )
    parser.add_argument(
        "--plugin",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module that is no installed plugin, from this folder too; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print the cards as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the cards."""
    options.start_logging("error")  # what goes wrong is on the card
    from twostroke.testing.kit import Verdict, closing_line

    plugins = _plugins(arguments.plugin)
    specs = [_spec(plugins, name) for name in arguments.backends]
    checks = _checks(arguments.check)
    cards = [_card(_subject(arguments, plugins, spec), checks, arguments.json) for spec in specs]
    if arguments.json:
        print(json.dumps({"cards": [card.to_json() for card in cards]}, indent=2))
    elif len(cards) > 1:
        print(closing_line(cards))
    verdicts = {card.verdict for card in cards}
    if Verdict.FAILS in verdicts:
        return 1
    return 0 if Verdict.PASSES in verdicts else 2


def _plugins(modules: list[str]) -> Plugins:
    """Every plugin, the modules that were named, and the echo backend."""
    from twostroke.backends.discovery import load_plugins
    from twostroke.testing import echo

    if modules:
        sys.path.insert(0, str(Path.cwd()))
    given = [_module(name) for name in modules]
    plugins = load_plugins(extra=given)
    return plugins if "echo" in plugins.backends else load_plugins(extra=[*given, echo])


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name.removesuffix(".py"))
    except Exception as error:
        raise PluginError(
            f"--plugin {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _spec(plugins: Plugins, name: str) -> BackendSpec:
    from twostroke.backends.choose import check_name

    check_name(plugins, name)
    if name not in plugins.backends:
        raise BackendError(
            f"{name!r} is no backend of its own; name one of {', '.join(sorted(plugins.backends))}."
        )
    return plugins.backends[name]


def _checks(names: list[str] | None) -> list[Check]:
    from twostroke.testing.kit import CHECKS

    known = {check.name: check for check in CHECKS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ConfigError([f"there is no check {unknown[0]!r}; the checks are {', '.join(known)}"])
    return list(CHECKS) if names is None else [known[name] for name in names]


def _subject(arguments: argparse.Namespace, plugins: Plugins, spec: BackendSpec) -> Subject:
    from twostroke.testing.kit import KitBundle, Subject

    bundle = arguments.bundle
    return Subject(
        spec,
        _options(arguments.options),
        device_index=arguments.device,
        tolerance=arguments.tolerance,
        precision=arguments.precision,
        make_bundle=None if bundle is None else lambda _: KitBundle(bundle),
        partner=plugins.backends.get("cpu"),
    )


def _options(given: list[str]) -> dict[str, Any]:
    """Values as YAML reads them, by name.

    Raises:
        ConfigError: one that is not NAME=VALUE.
    """
    import yaml

    values = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise ConfigError([f"--options {text}: expected NAME=VALUE, e.g. threads=2"])
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError([f"--options {text}: not a value that YAML can read"]) from error
    return values


def _card(subject: Subject, checks: list[Check], is_json: bool) -> Card:
    """Runs the checks; without JSON each row is printed as soon as it is known."""
    from twostroke.testing.kit import card_of, conform
    from twostroke.testing.kit.card import Result, row

    def heard(result: Result) -> None:
        if not is_json and not (result.reason and result.reason == subject.absence):
            print(row(result), flush=True)

    try:
        if not is_json:
            print(card_of(subject, ()).heading(), flush=True)
        card = conform(subject, checks, heard)
    finally:
        subject.close()
    if not is_json:
        print(f"{card.sentence()}\n")
    return card
