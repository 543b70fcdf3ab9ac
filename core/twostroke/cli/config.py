"""`twostroke config check` and `twostroke config schema`."""

from __future__ import annotations

import argparse
from pathlib import Path

from twostroke.cli import options

ABOUT = """\
Checks a YAML without loading anything, or prints the JSON schema that editors use to complete and
check one."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "config",
        run_check,
        summary="check a YAML, or print its JSON schema",
        about=ABOUT,
        examples=(
            "twostroke config check config.yaml",
            "twostroke config schema > config.schema.json",
        ),
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    check = options.add_parser(
        actions,
        "check",
        run_check,
        summary="report everything that is wrong in a YAML",
        about="Reports everything that is wrong in a YAML, each with its line and key, or that\n"
        "nothing is. Exits with 2 where something is wrong.",
        examples=(
            "twostroke config check config.yaml",
            "twostroke config check deploy.yaml --set server.port=9000",
        ),
    )
    check.add_argument("file", metavar="FILE", type=Path, help="the YAML")
    check.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="override a setting before checking; repeatable",
    )
    options.add_parser(
        actions,
        "schema",
        run_schema,
        summary="print the JSON schema",
        about="Prints the JSON schema of the YAML, for editors and other tools.",
        examples=("twostroke config schema > config.schema.json",),
    )


def run_check(arguments: argparse.Namespace) -> int:
    """Prints `FILE: ok`, what the file holds and what was not looked at.

    Raises:
        ConfigError: all the problems; those of names and places only where the rest is right.
    """
    from twostroke.backends.discovery import load_plugins
    from twostroke.check import find_faults, hub_ids
    from twostroke.config import load_config
    from twostroke.errors import ConfigError

    config = load_config(arguments.file, arguments.overrides)
    options.start_logging("error")  # plugins that failed matter where their backends are named
    faults = find_faults(config, load_plugins(config.plugins.block))
    if faults:
        raise ConfigError(faults)
    models = [
        f"{model.name} ({model.both_precisions}, backend {model.backend})"
        for model in config.models
    ]
    count = f"{len(models)} model{'s' if len(models) > 1 else ''}"
    print(f"{arguments.file}: ok, {count}: {', '.join(models)}")
    ids = hub_ids(config)
    on_hub = [f"whether the hub has {' and '.join(ids)} (no such path is here)"] if ids else []
    print(f"not checked: {', '.join([*on_hub, 'devices, backend options, memory'])}")
    return 0


def run_schema(_: argparse.Namespace) -> int:
    """Prints the JSON schema."""
    from twostroke.config.json_schema import schema_text

    print(schema_text(), end="")
    return 0
