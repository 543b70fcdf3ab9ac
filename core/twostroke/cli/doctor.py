"""`twostroke doctor`."""

from __future__ import annotations

import argparse

from twostroke.cli import options

ABOUT = """\
Looks at this machine and its Python environment and says what works, what is missing, and what to
install. Of configured models whose bundles are here it says how many nodes of each graph run on
which provider: it opens them for that. Exits with 2 where no backend can run."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "doctor",
        run,
        summary="say what works here and what to install",
        about=ABOUT,
        examples=("twostroke doctor", "twostroke doctor --config deploy.yaml"),
    )
    options.add_config_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the report."""
    config = options.read_config(arguments)
    options.start_logging("error")  # failures are in the report
    from twostroke.backends.discovery import load_plugins
    from twostroke.doctor import format_doctor

    report, is_healthy = format_doctor(load_plugins(config.plugins.block), config)
    print(report)
    return 0 if is_healthy else 2
