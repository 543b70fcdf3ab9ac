"""`twostroke evaluate`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli import options
from twostroke.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from twostroke.backends.discovery import Plugins

ABOUT = """\
Measures bundles on a text: perplexity (lower is better) and, with --source, how far each is from
the model it was made of: the mean KL divergence in nats (0 is equal, below 0.05 is hard to tell in
use) and how often the most likely token is the same. Several bundles of one model give a table
that helps to choose. SOURCE is another bundle, fp32 best; anything else that can be exported is
exported to fp32 first, once, and kept in the cache. Needs no torch where SOURCE is a bundle.

A long text is cut into windows of 512 tokens, of which the second half is predicted; decode ms is
the time of one step of one sequence on this machine, now."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "evaluate",
        run,
        summary="measure what a precision costs in quality",
        about=ABOUT,
        examples=(
            "twostroke evaluate bundles/mine book.txt",
            "twostroke evaluate bundles/mine-int8 bundles/mine-int4 book.txt "
            "--source bundles/mine-fp32",
            "twostroke evaluate bundles/mine book.txt --source org/name --save",
        ),
    )
    parser.add_argument("bundles", metavar="BUNDLE", type=Path, nargs="+", help="a bundle's folder")
    parser.add_argument("text", metavar="TEXT", type=Path, help="a file of plain text (UTF-8)")
    parser.add_argument("--source", help="what to compare with: a bundle, or what makes one")
    parser.add_argument(
        "--tokens",
        type=_number_of_tokens,
        metavar="N",
        default=2048,
        help="how many tokens of the text, from its beginning; default: 2048",
    )
    parser.add_argument(
        "--save", action="store_true", help="keep the figures in each bundle's bundle.json"
    )
    parser.add_argument("--backend", default="cpu", help="which one runs them; default: cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")


def run(arguments: argparse.Namespace) -> int:
    """Measures with progress on stderr, then prints the table."""
    options.start_logging("warning")
    from twostroke.backends.discovery import load_plugins
    from twostroke.backends.hookspecs import Progress
    from twostroke.cli.quality_table import as_json, quality_table
    from twostroke.evaluation import evaluate_bundles, read_text
    from twostroke.evaluation.advice import advise
    from twostroke.evaluation.record import record_evaluation

    text = read_text(arguments.text)
    plugins = load_plugins()
    with ProgressDisplay(sys.stderr) as progress:
        found = evaluate_bundles(
            arguments.bundles,
            text,
            plugins,
            source=_source(arguments.source, plugins, progress),
            num_tokens=arguments.tokens,
            backend=arguments.backend,
            report=lambda stage, fraction: progress(Progress(stage, fraction)),
        )
    if arguments.save:
        for one in found:
            record_evaluation(one.bundle.root, one.evaluation)
    if arguments.json:
        print(json.dumps([as_json(one) for one in found], indent=2))
        return 0
    for line in quality_table(found):
        print(line)
    print(f"hint: {advise(found)}")
    return 0


def _source(source: str | None, plugins: Plugins, progress: ProgressDisplay) -> Path | None:
    """The bundle to compare with, exported to fp32 where it is none yet."""
    from twostroke.source import resolve_source

    if source is None:
        return None
    return resolve_source(
        source, precision="fp32", context_tokens=None, plugins=plugins, progress=progress
    )


def _number_of_tokens(text: str) -> int:
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"must be 2 or more, not {number}")
    return number
