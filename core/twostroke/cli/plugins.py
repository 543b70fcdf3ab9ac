"""`twostroke plugins` and `twostroke plugins new`."""

from __future__ import annotations

import argparse
from pathlib import Path

from twostroke.cli import options

ABOUT = """\
Lists every plugin that was found: what it brings and whether it was loaded, blocked by the YAML, or
failed, and why. `twostroke plugins new NAME` writes a package for a backend of your own."""

ABOUT_NEW = """\
Writes a plugin package: a backend in one file that passes the conformance kit as it is, its test,
and what pip and a continuous integration need. Change it part by part from there."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "plugins",
        run,
        summary="list plugins: loaded, blocked, failed, and why; or begin one",
        about=ABOUT,
        examples=(
            "twostroke plugins",
            "twostroke plugins --set 'plugins.block=[cuda]'",
            "twostroke plugins new acme_npu",
        ),
    )
    options.add_config_flags(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    new = options.add_parser(
        actions,
        "new",
        run_new,
        summary="write a package for a backend of your own",
        about=ABOUT_NEW,
        examples=(
            "twostroke plugins new acme_npu",
            "twostroke plugins new acme_npu --out path/to/folder",
        ),
    )
    new.add_argument("name", metavar="NAME", help="the backend's name in the YAML")
    new.add_argument(
        "--out", metavar="DIR", type=Path, help="its folder; default: twostroke-NAME, here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    config = options.read_config(arguments)
    options.start_logging("error")  # failures are in the table
    from twostroke.backends.discovery import load_plugins
    from twostroke.doctor import format_plugins

    print(format_plugins(load_plugins(config.plugins.block)))
    return 0


def run_new(arguments: argparse.Namespace) -> int:
    """Writes the package and says how to go on."""
    options.start_logging("error")
    from twostroke.backends.discovery import load_plugins
    from twostroke.errors import ConfigError
    from twostroke.skeleton import write_skeleton

    name = arguments.name
    if name in load_plugins().backends:
        raise ConfigError([f"there is a backend {name!r} already; choose another name."])
    folder = write_skeleton(name, arguments.out)
    print(
        f"{folder}: a backend that runs on the CPU and passes the kit. Next:\n"
        f'  cd {folder} && pip install -e ".[test]"\n'
        f"  twostroke conformance {name}\n"
        f"Then change what is marked `change`, and ask the kit again."
    )
    return 0
