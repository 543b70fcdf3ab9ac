"""`twostroke plan`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from twostroke.cli import options
from twostroke.cli.plan_config import plan_config
from twostroke.cli.progress import size
from twostroke.errors import ConfigError, OutOfMemoryError, TwostrokeError

if TYPE_CHECKING:
    from twostroke.backends.protocol import Backend
    from twostroke.life.forecast import Forecast

ABOUT = """\
Says whether a model fits and how fast it can be, before anything is exported or loaded: from a
bundle's graphs, or from the config.json of a model (of one on the hub nothing else is downloaded).
Speeds are bounds: bytes to read and operations to do over what this device can do at most, which is
measured once. Without SOURCE: whether the models of the YAML fit beside each other, and what each
cache gets. Exits with 2 where the plan does not fit. docs/memory.md has the formulas."""

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int4")  # of `mixed` the bits are not known yet
_KV_DTYPES = ("float32", "float16", "bfloat16", "int8")


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "plan",
        run,
        summary="say whether a model fits and how fast it can be",
        about=ABOUT,
        examples=(
            "twostroke plan bundles/mine",
            "twostroke plan org/name --precision int4 --context 4096 --rows 4",
            "twostroke plan path/to/config.json --memory 8GiB --json",
            "twostroke plan --config deploy.yaml",
        ),
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="a bundle, ONNX graphs, a model's folder, a config.json, a .gguf file or a hub id; "
        "without it the models of the YAML, beside each other",
    )
    options.add_config_flags(parser)
    parser.add_argument("--context", type=int, metavar="N", help="default: the model's limit")
    parser.add_argument(
        "--rows", type=int, default=1, metavar="N", help="sequences at once; default: 1"
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of an export to be made; default: int8; mixed lies between int8 and int4",
    )
    parser.add_argument(
        "--kv-dtype", choices=_KV_DTYPES, help="of the cache; default: what the export keeps"
    )
    parser.add_argument("--memory", metavar="SIZE", help="e.g. 8GiB; default: what is free now")
    parser.add_argument("--backend", default="auto", help="default: auto")
    parser.add_argument("--json", action="store_true", help="every number, for programs")


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan.

    Raises:
        OutOfMemoryError: it was printed, and does not fit.
        ConfigError: flags that do not go together, a wrong YAML.
    """
    options.start_logging("error" if arguments.json else "warning")
    if arguments.rows < 1:
        raise ConfigError([f"--rows must be 1 or more, not {arguments.rows}"])
    if arguments.source is None:
        plan_config(arguments, _memory(arguments.memory))
        return 0
    if arguments.config is not None or arguments.overrides:
        raise ConfigError(["--config and --set are for the models of a YAML; leave SOURCE out"])
    forecast = _forecast(arguments, _memory(arguments.memory))
    if arguments.json:
        print(json.dumps(forecast.report(), indent=2))
    else:
        for line in lines(forecast):
            print(line)
    if not forecast.fits:
        raise OutOfMemoryError(_refusal(forecast))
    return 0


def lines(forecast: Forecast) -> Iterator[str]:
    """The plan in words, a line each."""
    subject, work = forecast.subject, forecast.workspace
    of_experts = ""
    if subject.weights.num_active < subject.weights.num_parameters:
        of_experts = f" ({_count(subject.weights.num_active)} of them active for a token)"
    yield (
        f"{subject.name}: {subject.model_type} with {_count(subject.num_parameters)} parameters"
        f"{of_experts}, {subject.precision}"
    )
    on_disk = size(subject.stored_bytes)
    yield f"  weights    {size(subject.loaded_bytes)} in memory, {on_disk} on disk"
    yield (
        f"  KV cache   {size(subject.kv_bytes_per_token)} a token in {subject.kv_dtype}, "
        f"{size(forecast.row_bytes)} a row of {forecast.context_tokens} tokens, "
        f"{size(forecast.kv_bytes)} for {_rows(forecast.num_rows)}"
    )
    scores = f", {size(work.scores_bytes)} of it attention scores" if work.scores_bytes else ""
    yield f"  workspace  {size(work.num_bytes)}{scores}"
    yield f"  together   {size(forecast.total_bytes)}{_against(forecast)}"
    if forecast.memory_bytes is not None:
        yield (
            f"  most       {forecast.longest_context_tokens} tokens of context with "
            f"{_rows(forecast.num_rows)}, {_rows(forecast.most_rows)} of "
            f"{forecast.context_tokens} tokens"
        )
    yield from _speeds(forecast)


def _speeds(forecast: Forecast) -> Iterator[str]:
    context, num_rows = forecast.context_tokens, forecast.num_rows
    alone, full = (forecast.decode_tokens_per_s(1, n) for n in (1, context))
    together = forecast.decode_tokens_per_s(num_rows, 1)
    if alone is None or full is None or together is None:
        yield "  speed      not known: the device tells no bandwidth"
        return
    yield f"  device     {forecast.limits.sentence()}"
    many = f", {together:.3g} for {_rows(num_rows)} together" if num_rows > 1 else ""
    yield (
        f"  decode     at most {alone:.3g} tokens a second in an empty context, {full:.3g} in a "
        f"full one{many}"
    )
    prompt = int(forecast.report()["prefill_tokens"])
    short, long = forecast.prefill_s(prompt), forecast.prefill_s(context)
    if short is not None and long is not None:
        yield (
            f"  prefill    at least {_duration(short)} for {prompt} tokens, {_duration(long)} for "
            f"{context}"
        )


def _forecast(arguments: argparse.Namespace, memory_bytes: int | None) -> Forecast:
    from twostroke.backends.capabilities import PacksWeights
    from twostroke.backends.discovery import load_plugins
    from twostroke.engine.limits import DEFAULT_CHUNK_TOKENS
    from twostroke.life.forecast import Forecast
    from twostroke.life.free_memory import free_memory_bytes
    from twostroke.life.limits import DeviceLimits, device_limits
    from twostroke.life.plan_source import find_subject
    from twostroke.life.subject import check_context

    backend = _open(arguments.backend, load_plugins())
    is_host = backend is None or backend.device.kind == "cpu"
    advised = None if backend is None else backend.device.prefill_chunk_tokens
    packs = shares = backend is None  # without any, the in-tree CPU's ways are planned
    if isinstance(backend, PacksWeights):
        packs, shares = True, backend.shares_packed_weights
    subject = find_subject(
        arguments.source,
        precision=arguments.precision,
        kv_dtype=arguments.kv_dtype,
        packs=packs,
        shares=shares,
    )
    context_tokens = check_context(subject, arguments.context)
    if memory_bytes is None and is_host:
        memory_bytes = free_memory_bytes()
    elif memory_bytes is None and backend is not None:
        memory_bytes = backend.device.memory_bytes
    try:
        limits = DeviceLimits() if backend is None else device_limits(backend)
    finally:
        if backend is not None:
            backend.close()
    return Forecast(
        subject,
        context_tokens,
        arguments.rows,
        memory_bytes,
        limits,
        chunk_tokens=advised or DEFAULT_CHUNK_TOKENS,
        keeps_scores=is_host,
    )


def _open(name: str, plugins: object) -> Backend | None:
    """The backend whose device is planned for; None where `auto` finds none, which is no fault."""
    from twostroke.backends.choose import AUTO, open_backend
    from twostroke.backends.discovery import Plugins

    assert isinstance(plugins, Plugins)
    try:
        return open_backend(plugins, name).backend
    except TwostrokeError:
        if name != AUTO:
            raise
        return None


def _memory(text: str | None) -> int | None:
    from twostroke.config.values import parse_bytes

    if text is None:
        return None
    try:
        return int(parse_bytes(text))
    except ValueError as error:
        raise ConfigError([f"--memory: {error}"]) from None


def _against(forecast: Forecast) -> str:
    if forecast.memory_bytes is None:
        return ""
    verdict = "fits" if forecast.fits else "does not fit"
    return f" of {size(forecast.memory_bytes)}: {verdict}"


def _refusal(forecast: Forecast) -> str:
    context, rows = forecast.longest_context_tokens, forecast.most_rows
    ways = [f"--context {context}"] if context > 1 else []
    ways += [f"--rows {rows}"] if rows else []
    advice = f"; {' or '.join(ways)} would fit" if ways else "; a smaller precision takes less"
    return (
        f"{forecast.subject.name} takes {size(forecast.total_bytes)}, there are "
        f"{size(forecast.memory_bytes or 0)}{advice}."
    )


def _rows(number: int) -> str:
    return f"{number} row" if number == 1 else f"{number} rows"


def _count(number: int) -> str:
    for power, unit in ((9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {unit}"
    return str(number)


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
