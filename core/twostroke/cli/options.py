"""Flags that several commands share, and what they mean."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twostroke.config import Config

Subparsers = Any  # argparse keeps the type of what add_subparsers returns to itself

DEFAULT_FILE = Path("config.yaml")
LOG_LEVELS = ("debug", "info", "warning", "error")
OWN_LOGGERS = ("twostroke", "twostroke_backends", "twostroke_export")


def add_parser(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    about: str,
    examples: tuple[str, ...],
) -> argparse.ArgumentParser:
    """A sub-command's parser: `summary` for the list, `about` and `examples` for its own help."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=about,
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show stack traces"
    )
    parser.set_defaults(run=run)
    return parser


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """`--config` and `--set`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the YAML; without it ./config.yaml where there is one, else the built-in defaults",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="override a setting, e.g. server.port=9000 or models.0.backend=cpu; repeatable",
    )


def read_config(arguments: argparse.Namespace) -> Config:
    """What `--config` and `--set` say.

    Raises:
        ConfigError: everything that is wrong.
    """
    from twostroke.config import load_config

    return load_config(config_path(arguments), arguments.overrides)


def config_path(arguments: argparse.Namespace) -> Path | None:
    """The file that `--config` names, or the one of the working directory; None: there is none."""
    path: Path | None = arguments.config
    return DEFAULT_FILE if path is None and DEFAULT_FILE.exists() else path


def add_log_flag(parser: argparse.ArgumentParser, default: str) -> None:
    """`--log-level`."""
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default=default, help=f"default: {default}"
    )


def start_logging(level: str, *, timestamps: bool = False) -> None:
    """Sends log records to stderr: a server's with the time, a command's like its errors.

    `level` is that of twostroke's own loggers; other libraries are heard from `warning` up.
    """
    stamped = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(stamped) if timestamps else _Sentence())
    logging.basicConfig(handlers=[handler], level="ERROR" if level == "error" else "WARNING")
    for logger in OWN_LOGGERS:
        logging.getLogger(logger).setLevel(level.upper())


class _Sentence(logging.Formatter):
    """`twostroke: warning: MESSAGE`, as errors are printed."""

    def __init__(self) -> None:
        super().__init__("%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return f"twostroke: {record.levelname.lower()}: {super().format(record)}"


def add_sampling_flags(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """How tokens are chosen. A flag that is not given leaves the model's own default.

    Only `max_tokens` has a default of ours: a small model may repeat itself to the context's end.
    """
    group = parser.add_argument_group("sampling", "left out: what the model recommends")
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        default=max_tokens,
        help=f"longest answer; default: {max_tokens}",
    )
    group.add_argument("--temperature", type=float, metavar="X", help="0 is greedy")
    group.add_argument("--top-k", type=int, metavar="N", help="0 is off")
    group.add_argument("--top-p", type=float, metavar="X", help="1 is off")
    group.add_argument("--min-p", type=float, metavar="X", help="0 is off")
    group.add_argument("--repetition-penalty", type=float, metavar="X", help="1 is off")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="0 is off")
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="0 is off")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed, the same text")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before it; repeatable")


SAMPLING_NAMES = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
)


def read_sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling flags that were given, by the names of `SamplingParams`."""
    given = {name: getattr(arguments, name) for name in SAMPLING_NAMES}
    if given["stop"] is not None:
        given["stop"] = tuple(given["stop"])
    return {name: value for name, value in given.items() if value is not None}


def count(text: str) -> int:
    """A number of things, 1 or more, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def counts(text: str) -> tuple[int, ...]:
    """Several of them, `1,8`; each once, in their order."""
    return tuple(dict.fromkeys(count(part) for part in text.split(",")))
