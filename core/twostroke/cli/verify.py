"""`twostroke verify`."""

from __future__ import annotations

import argparse
from pathlib import Path

from twostroke.cli import options

ABOUT = """\
Checks a bundle on this machine, without its source model and without torch: every file's hash, the
tensors that both graphs declare, and that they still give the tokens they gave when exported."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "verify",
        run,
        summary="check a bundle's files, graphs and answers",
        about=ABOUT,
        examples=("twostroke verify bundles/mine",),
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="the bundle's folder")


def run(arguments: argparse.Namespace) -> int:
    """Prints what was checked; a failed check is raised as a BundleError."""
    options.start_logging("warning")
    from twostroke.verify import verify_bundle

    for line in verify_bundle(arguments.bundle):
        print(line)
    print(f"{arguments.bundle}: ok")
    return 0
