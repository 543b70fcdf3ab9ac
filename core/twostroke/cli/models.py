"""`twostroke models`, `twostroke models load NAME` and `unload NAME`: asks a running server."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from twostroke.cli import options
from twostroke.errors import UnavailableError

ABOUT = """\
Shows what a running server serves and what of it is in memory. Loading and unloading is for
operators: with one of server.keys in TWOSTROKE_KEY or --key, or on the server's own machine where
no keys are configured."""

_DEFAULT_URL = "http://127.0.0.1:8080"
_TIMEOUT_S = 600.0  # a load may include an export


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "models",
        run_list,
        summary="show, load and unload the models of a running server",
        about=ABOUT,
        examples=(
            "twostroke models",
            "twostroke models load large",
            "twostroke models unload large --url http://127.0.0.1:9000",
        ),
    )
    _add_flags(parser)
    actions = parser.add_subparsers(metavar="ACTION")
    _add_action(actions, "load", "load a model now and wait until it is there")
    _add_action(actions, "unload", "take a model out of memory when its answers have ended")


def _add_action(actions: options.Subparsers, name: str, summary: str) -> None:
    action = options.add_parser(
        actions,
        name,
        lambda arguments: _run_action(arguments, name),
        summary=summary,
        about=f"{summary[0].upper()}{summary[1:]}. {ABOUT}",
        examples=(f"twostroke models {name} large",),
    )
    action.add_argument("name", metavar="NAME", help="the model's name or alias")
    _add_flags(action)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default=_DEFAULT_URL, help=f"where the server listens; default: {_DEFAULT_URL}"
    )
    parser.add_argument("--key", help="an API key; default: TWOSTROKE_KEY of the environment")


def run_list(arguments: argparse.Namespace) -> int:
    """Prints a line for each model: its state, name, aliases and context."""
    for model in _ask(arguments, "GET", "/v1/models")["data"]:
        context = model["max_model_len"]
        facts = [f"{context} tokens"] if context else []
        facts += [f"also {', '.join(model['aliases'])}"] if model["aliases"] else []
        print(f"{model['status']:<10} {model['id']}{'  ' if facts else ''}{'; '.join(facts)}")
    return 0


def _run_action(arguments: argparse.Namespace, action: str) -> int:
    path = f"/admin/models/{quote(arguments.name, safe='')}/{action}"
    reply = _ask(arguments, "POST", path)
    print(f"{reply['status']:<10} {reply['name']}")
    return 0


def _ask(arguments: argparse.Namespace, method: str, path: str) -> Any:
    """What the server answers.

    Raises:
        UnavailableError: it does not answer, or refuses; with its own words.
    """
    url = f"{arguments.url.rstrip('/').removesuffix('/v1')}{path}"
    if not url.startswith(("http://", "https://")):
        raise UnavailableError(f"--url {arguments.url} is no URL; write e.g. {_DEFAULT_URL}")
    request = urllib.request.Request(url, method=method)
    key = arguments.key or os.environ.get("TWOSTROKE_KEY")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        raise UnavailableError(_message(error)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UnavailableError(
            f"{arguments.url} does not answer as twostroke does: {reason}. Is `twostroke serve` "
            "running there? --url names another address."
        ) from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
