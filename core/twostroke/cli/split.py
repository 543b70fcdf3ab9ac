"""`twostroke split`."""

from __future__ import annotations

import argparse
from pathlib import Path

from twostroke.cli import options
from twostroke.errors import InstallError

ABOUT = """\
Cuts the graphs of a bundle between two layers, so that a model that is larger than one device's
memory runs on two: `models[].offload` in the YAML says where the first layers go. Adds small files
to the bundle; the weights and the whole graphs stay as they are. `twostroke serve` does the same
by itself where it may write to the bundle."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "split",
        run,
        summary="cut a bundle between two layers, to run it on two devices",
        about=ABOUT,
        examples=("twostroke split bundles/mine --layers 20",),
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="the bundle's folder")
    parser.add_argument(
        "--layers", type=int, required=True, metavar="N", help="how many go to the first device"
    )


def run(arguments: argparse.Namespace) -> int:
    """Adds the halves.

    Raises:
        InstallError: no exporter here can cut graphs.
        ExportError, BundleError: the bundle cannot be cut there, or not be written.
    """
    options.start_logging("warning")
    from twostroke.backends.discovery import load_plugins
    from twostroke.bundle.open import read_manifest

    for exporter in load_plugins().exporters.values():
        if exporter.split is not None:
            exporter.split(arguments.bundle, arguments.layers)
            break
    else:
        raise InstallError('Nothing here cuts graphs: pip install "twostroke[export]"')
    for cut in read_manifest(arguments.bundle).cuts:
        if cut.num_front_layers == arguments.layers:
            print(f"{cut.file}: {cut.front} and {cut.back}")
    return 0
