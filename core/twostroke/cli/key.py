"""`twostroke key create`, `twostroke key list`, `rotate` and `revoke`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli import options
from twostroke.cli.dates import duration, expiry, moment

if TYPE_CHECKING:
    from twostroke.api_keys.key_file import KeyFile

ABOUT = """\
Makes API keys and keeps their hashes in a file that `server.key_file` names. A running server takes
changes up within seconds. A secret is shown once, on standard output, and nowhere kept."""

ABOUT_CREATE = """\
Makes a key and prints its secret, the only time that it can be seen. What is left out is not
limited."""

ABOUT_ROTATE = """\
Gives a key a new secret and prints it. The old one is taken for --grace longer."""


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "key",
        run_list,
        summary="create, list, rotate and revoke API keys",
        about=ABOUT,
        examples=(
            "twostroke key create alice --models smollm2-135m-instruct --rate 60 --expires 90d",
            "twostroke key list",
            "twostroke key revoke alice",
        ),
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_create(actions)
    listed = _add_action(
        actions, "list", run_list, "show the keys of the file, without secrets", ABOUT
    )
    listed.add_argument("--json", action="store_true", help="as JSON, a key an object")
    rotate = _add_action(
        actions, "rotate", run_rotate, "give a key a new secret", ABOUT_ROTATE, "alice --grace 24h"
    )
    rotate.add_argument("name", metavar="NAME", help="the key's name")
    rotate.add_argument(
        "--grace",
        type=duration,
        metavar="TIME",
        default=timedelta(),
        help="how long the old secret is still taken, e.g. 24h; default: not at all",
    )
    about = "Takes keys out of the file; their requests get 401 from then on."
    revoke = _add_action(actions, "revoke", run_revoke, "take keys away", about, "alice")
    revoke.add_argument("names", metavar="NAME", nargs="+", help="the keys' names")


def _add_create(actions: options.Subparsers) -> None:
    create = _add_action(
        actions,
        "create",
        run_create,
        "make a key and print its secret",
        ABOUT_CREATE,
        "alice --models smollm2-135m-instruct --rate 60 --concurrency 4 --expires 90d",
    )
    create.add_argument("name", metavar="NAME", nargs="?", help="default: key-1, key-2, …")
    models = create.add_mutually_exclusive_group()
    models.add_argument(
        "--models", type=_names, metavar="A,B", help="models it may use, as the YAML names them"
    )
    models.add_argument(
        "--no-models",
        dest="models",
        action="store_const",
        const=(),
        help="none at all: a key for who reads /metrics",
    )
    create.add_argument(
        "--rate", type=options.count, metavar="N", help="requests that may begin in a minute"
    )
    create.add_argument(
        "--token-rate",
        type=options.count,
        metavar="N",
        help="tokens of prompts and answers in a minute",
    )
    create.add_argument(
        "--concurrency", type=options.count, metavar="N", help="requests that may run at once"
    )
    create.add_argument(
        "--expires",
        type=moment,
        metavar="WHEN",
        help="90d, 12h, or a date: 2027-01-31 (its beginning, UTC) or 2027-01-31T12:00+01:00",
    )


def _add_action(
    actions: options.Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    about: str,
    example: str = "",
) -> argparse.ArgumentParser:
    command = f"twostroke key {name} {example}".rstrip()
    parser = options.add_parser(
        actions,
        name,
        run,
        summary=summary,
        about=about,
        examples=(command, f"{command} --file /etc/twostroke/keys.json"),
    )
    parser.add_argument(
        "--file", metavar="FILE", type=Path, help="the key file; default: server.key_file"
    )
    options.add_config_flags(parser)
    return parser


def run_create(arguments: argparse.Namespace) -> int:
    """Makes a key; its secret is all that goes to standard output.

    Raises:
        ConfigError: the name is taken, or the file cannot be changed.
    """
    from twostroke.api_keys.edits import created
    from twostroke.api_keys.secret import new_secret

    file, secret, now = _key_file(arguments), new_secret(), datetime.now(UTC)
    rights = {
        "models": arguments.models,
        "requests_per_minute": arguments.rate,
        "tokens_per_minute": arguments.token_rate,
        "concurrency": arguments.concurrency,
        "expires_at": expiry(arguments.expires, now),
    }
    keys = file.change(lambda keys: created(keys, arguments.name, secret, now, rights))
    _show_secret(secret, f"{file.path}: the key {keys[-1].name!r}. Its secret, shown this once:")
    return 0


def run_rotate(arguments: argparse.Namespace) -> int:
    """Exchanges a secret.

    Raises:
        ConfigError: there is no such key, or the file cannot be changed.
    """
    from twostroke.api_keys.edits import rotated
    from twostroke.api_keys.secret import new_secret

    file, secret, now = _key_file(arguments), new_secret(), datetime.now(UTC)
    file.change(lambda keys: rotated(keys, arguments.name, secret, now, arguments.grace))
    about = f"{file.path}: the key {arguments.name!r} has a new secret."
    if arguments.grace:
        about += f" The old one is taken until {now + arguments.grace:%Y-%m-%d %H:%M %Z}."
    _show_secret(secret, about)
    return 0


def run_revoke(arguments: argparse.Namespace) -> int:
    """Takes keys away.

    Raises:
        ConfigError: there is no such key (then none is taken away), or the file cannot be changed.
    """
    from twostroke.api_keys.edits import revoked
    from twostroke.api_keys.key_file import Entries

    def edit(keys: Entries) -> Entries:
        for name in arguments.names:
            keys = revoked(keys, name)
        return keys

    file = _key_file(arguments)
    file.change(edit)
    print(f"{file.path}: revoked {', '.join(arguments.names)}")
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Prints the keys.

    Raises:
        ConfigError: the file cannot be read.
    """
    from twostroke.cli.key_table import key_json, key_table

    keys, now = _key_file(arguments).read(), datetime.now(UTC)
    print(key_json(keys, now) if arguments.json else key_table(keys, now))
    return 0


def _key_file(arguments: argparse.Namespace) -> KeyFile:
    from twostroke.api_keys.key_file import KeyFile
    from twostroke.errors import ConfigError

    path = arguments.file
    if path is None:
        configured = options.read_config(arguments).server.key_file
        if configured is None:
            raise ConfigError(
                [
                    "which file? Name it with --file, or as server.key_file in the YAML: that is "
                    "also what a server reads."
                ]
            )
        path = Path(configured)
    return KeyFile(path)


def _show_secret(secret: str, about: str) -> None:
    print(about, file=sys.stderr)
    print(secret, flush=True)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError("no model is named")
    return names
