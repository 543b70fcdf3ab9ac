"""The `twostroke` command: its parser, and how failures become messages and exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from twostroke.cli import (
    bench,
    chat,
    config,
    conformance,
    doctor,
    evaluate,
    export,
    generate,
    key,
    models,
    plan,
    plugins,
    serve,
    split,
    tune,
    verify,
)
from twostroke.cli.termination import Terminated, terminable
from twostroke.errors import ConfigError, TwostrokeError

COMMANDS = (
    *(serve, export, verify, split, evaluate, plan, generate, chat, bench),
    *(models, tune, key, plugins, conformance, doctor, config),
)

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
PIPE_CLOSED = 141  # 128 + SIGPIPE
_KILLED = 128  # plus the signal's number, as shells report it
UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; never raises but SystemExit from argparse.

    0: it worked; 2: an error on purpose, told in a sentence; 70: a fault of twostroke itself;
    130: Ctrl-C; 141: whoever read the output has gone; 143: SIGTERM (which `serve` answers itself,
    see there). Stack traces are shown only with `--debug` or TWOSTROKE_DEBUG=1.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows `?`
    arguments = build_parser().parse_args(argv)
    debug = arguments.debug or os.environ.get("TWOSTROKE_DEBUG", "") not in ("", "0")
    try:
        with terminable():
            code = int(arguments.run(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ntwostroke: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Terminated as ended:
        with suppress(OSError):  # the terminal may be gone
            print("\ntwostroke: terminated", file=sys.stderr)
        return _KILLED + ended.number
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:  # the last place where anything can be told
        if debug:
            traceback.print_exc()
        print(f"twostroke: error: {_sentence(error, debug=debug)}", file=sys.stderr)
        return error.exit_code if isinstance(error, TwostrokeError) else _foreign_code(error)
    return code


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. Sub-commands leave their function in `run`."""
    parser = argparse.ArgumentParser(
        prog="twostroke",
        description="Local language models on ONNX Runtime: prefill and decode as two graphs, "
        "served as one streaming endpoint.",
        epilog="examples:\n"
        "  twostroke serve --set server.port=9000\n"
        "  twostroke export path/to/hf-folder bundles/mine --precision int8\n"
        '  twostroke generate --model bundles/mine "Once upon a time"\n\n'
        "Each command explains itself: twostroke COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    parser.add_argument("--debug", action="store_true", help="show stack traces of errors")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_command(subparsers)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked: importlib.metadata costs as much as all the rest."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"twostroke {version('twostroke')}")
        parser.exit()


def _sentence(error: Exception, *, debug: bool) -> str:
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        return f"the configuration has {len(error.problems)} problems:\n{error}"
    if isinstance(error, TwostrokeError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"{error.filename}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EIO):  # a full disk, a terminal that is gone
            return f"the output cannot be written: {error.strerror}"
    advice = "" if debug else "; run it again with --debug to see where"
    return f"{type(error).__name__}: {error} (this should not happen{advice})"


def _foreign_code(error: Exception) -> int:
    return TwostrokeError.exit_code if isinstance(error, OSError) else UNEXPECTED
