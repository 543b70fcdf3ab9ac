"""`twostroke plugins`."""

from __future__ import annotations

import argparse

from twostroke.cli import options

ABOUT = """\
Lists every plugin that was found: what it brings and whether it was loaded, blocked by the YAML, or
failed, and why."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "plugins",
        run,
        summary="list plugins: loaded, blocked, failed, and why",
        about=ABOUT,
        examples=("twostroke plugins", "twostroke plugins --set 'plugins.block=[cuda]'"),
    )
    options.add_config_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    config = options.read_config(arguments)
    options.start_logging("error")  # failures are in the table
    from twostroke.backends.discovery import load_plugins
    from twostroke.doctor import format_plugins

    print(format_plugins(load_plugins(config.plugins.block)))
    return 0
