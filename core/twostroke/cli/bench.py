"""`twostroke bench`."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostroke.cli import options
from twostroke.errors import TwostrokeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twostroke.bench.client import Client, Target
    from twostroke.bench.report import Result
    from twostroke.bench.run import Scenario

ABOUT = """\
Asks running endpoints over HTTP, as many streams at once as told, and prints time to first token,
time between tokens, request latency and tokens a second. --url and --model may be repeated: the
endpoints take turns, and ratios to the first are printed. See docs/bench.md.

scenarios:
  mix      requests of mixed lengths (or of --prompt-tokens and --answer-tokens)
  stall    the longest silence of running streams while 4,000-token prompts arrive
  turns    time to first token of the second turns of chats against the first
  health   how long GET /health takes while streams run and a large prompt is sent"""
SCENARIOS = ("mix", "stall", "turns", "health")
DEFAULT_STREAMS = (1, 4, 8, 16)


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "bench",
        run,
        summary="measure endpoints under load",
        about=ABOUT,
        examples=(
            "twostroke bench --url http://127.0.0.1:8080 --streams 1,8",
            "twostroke bench --model bundles/mine --prompt-tokens 50 --answer-tokens 128",
            "twostroke bench --url http://127.0.0.1:8080 --url http://127.0.0.1:8081 --api openai",
            "twostroke bench --model bundles/mine --scenario stall --json stall.json",
        ),
    )
    _add_target_flags(parser)
    _add_load_flags(parser)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures as JSON, too")


def _add_target_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("endpoints")
    group.add_argument(
        "--url", action="append", default=[], metavar="URL", help="a running endpoint; repeatable"
    )
    group.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="SOURCE",
        help="a bundle or whatever `serve` takes; served in a child process; repeatable",
    )
    group.add_argument(
        "--api",
        choices=("generate", "openai"),
        default="generate",
        help="generate: twostroke's own surface (default); openai: /v1/… of any server",
    )
    group.add_argument(
        "--served-model", metavar="NAME", help="the model to ask for; default: the first listed"
    )
    group.add_argument("--key", help="an API key")
    options.add_config_flags(parser)
    options.add_log_flag(parser, "warning")


def _add_load_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--scenario", choices=SCENARIOS, default="mix", help="default: mix")
    group.add_argument(
        "--streams",
        type=options.counts,
        metavar="N,N",
        help="requests at once; mix: each in turn, default 1,4,8,16 (none beside --rate); "
        "stall: default 4; health: default 8",
    )
    group.add_argument(
        "--rate",
        type=_rates,
        metavar="X,X",
        default=(),
        help="requests a second that come by chance (Poisson) and wait for nobody",
    )
    group.add_argument(
        "--requests", type=options.count, metavar="N", default=32, help="of each load; default: 32"
    )
    group.add_argument(
        "--rounds",
        type=options.count,
        metavar="N",
        help="shares of a load that endpoints run in turn; default: 1, of several endpoints 4",
    )
    group.add_argument(
        "--prompt-tokens", type=options.count, metavar="N", help="about; default: the mix"
    )
    group.add_argument("--answer-tokens", type=options.count, metavar="N", help="default: the mix")
    group.add_argument(
        "--warm-up", type=int, metavar="N", default=2, help="requests before it counts; default: 2"
    )
    group.add_argument("--seed", type=int, metavar="N", default=0, help="default: 0")


def run(arguments: argparse.Namespace) -> int:
    """Runs the scenario; 1 where a request of it failed."""
    options.start_logging(arguments.log_level)
    from twostroke.bench.places import find_places, place_lines
    from twostroke.bench.report import as_json, lines_of
    from twostroke.bench.run import run as run_bench

    if not arguments.url and not arguments.model:
        raise TwostrokeError("Name an endpoint with --url, or a model to serve with --model.")
    if (arguments.prompt_tokens is None) != (arguments.answer_tokens is None):
        raise TwostrokeError(
            "--prompt-tokens and --answer-tokens go together; give both or neither."
        )
    with ExitStack() as stack:
        targets = _targets(arguments, stack)
        places = find_places(targets)
        scenario = _scenario(arguments, len(targets))
        results = run_bench(targets, scenario, num_warm_ups=arguments.warm_up)
    for line in (*place_lines(places), *lines_of(results)):
        print(line)
    if arguments.json is not None:
        names = ("streams", "rate", "requests", "prompt_tokens", "answer_tokens", "seed", "api")
        settings = {name: getattr(arguments, name) for name in names}
        found = as_json(arguments.scenario, settings, results) | {"places": places}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    errors = [result.first_error for result in results if result.first_error is not None]
    if errors:
        print(f"twostroke: requests failed, the first with: {errors[0]}", file=sys.stderr)
    return 1 if errors else 0


def _targets(arguments: argparse.Namespace, stack: ExitStack) -> list[Target]:
    """The endpoints of the flags, those of `--model` started; `stack` stops them."""
    from twostroke.bench.client import Target
    from twostroke.bench.served import served

    make = partial(Target, api=arguments.api)
    targets = [
        make(url.rstrip("/").removesuffix("/v1"), model=arguments.served_model, key=arguments.key)
        for url in arguments.url
    ]
    for source in arguments.model:
        flags = [] if arguments.config is None else ["--config", str(arguments.config)]
        given = [f"models.0.source={json.dumps(source)}", *arguments.overrides]
        flags += [part for setting in given for part in ("--set", setting)]
        flags += ["--log-level", arguments.log_level]
        url = stack.enter_context(served(flags))
        targets.append(make(url, name=Path(source).name or source))
    return targets


def _scenario(arguments: argparse.Namespace, num_targets: int) -> Scenario:
    from twostroke.bench import scenarios
    from twostroke.bench.asks import fixed_asks, mixed_asks

    streams, seed = arguments.streams, arguments.seed
    if arguments.scenario == "mix":
        asks = mixed_asks
        if arguments.prompt_tokens is not None:
            asks = partial(fixed_asks, arguments.prompt_tokens, arguments.answer_tokens)
        mix = scenarios.Mix(
            asks,
            streams or (() if arguments.rate else DEFAULT_STREAMS),
            arguments.rate,
            arguments.requests,
            arguments.rounds or (1 if num_targets == 1 else 4),
        )
        return partial(scenarios.run_mix, mix=mix, seed=seed)
    if arguments.scenario == "stall":
        stall = scenarios.Stall(num_streams=streams[0] if streams else 4)
        return _each(partial(scenarios.run_stall, stall=stall, seed=seed))
    if arguments.scenario == "turns":
        return _each(partial(scenarios.run_turns, turns=scenarios.Turns(), seed=seed))
    health = scenarios.Health(num_streams=streams[0] if streams else 8)
    return _each(partial(scenarios.run_health, health=health, seed=seed))


def _each(ask_one: Callable[[Client], Any]) -> Scenario:
    async def ask_all(clients: Sequence[Client]) -> list[Result]:
        return [await ask_one(client) for client in clients]

    return ask_all


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(float(part) for part in text.split(","))
    if any(not rate > 0 for rate in rates):
        raise argparse.ArgumentTypeError(f"{text}: rates must be above 0")
    return rates
