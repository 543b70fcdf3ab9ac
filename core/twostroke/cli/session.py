"""The model that `generate` and `chat` talk to, in this process."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli import options
from twostroke.cli.progress import ProgressDisplay
from twostroke.errors import ModelNotFoundError

if TYPE_CHECKING:
    from twostroke.config import Config, ModelConfig
    from twostroke.model import Completion, Model


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """`--model`, `--config`, `--set` and `--log-level`."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a bundle, a folder of ONNX graphs, a Hugging Face folder, a hub id or a .gguf file; "
        "or the name of a model in the YAML. Default: the first model of the YAML",
    )
    options.add_config_flags(parser)
    options.add_log_flag(parser, "warning")


def open_model(
    arguments: argparse.Namespace, *, measure_device: bool = False, num_choices: int = 1
) -> Model:
    """The model that the flags mean, exported first where it must be. The caller closes it.

    `measure_device` as for `Model.from_config`. There is a row for each of `num_choices` that are
    made at a time, as far as `scheduler.max_rows` allows.

    Raises:
        TwostrokeError: the YAML, the source, the backend or the memory.
    """
    options.start_logging(arguments.log_level)
    config, wanted = choose_model(arguments)
    from twostroke.backends.discovery import load_plugins
    from twostroke.model import Model

    with ProgressDisplay(sys.stderr) as progress:
        return Model.from_config(
            wanted,
            config.scheduler.model_copy(
                update={"max_rows": min(num_choices, config.scheduler.max_rows)}
            ),
            plugins=load_plugins(config.plugins.block),
            progress=progress,
            measure_device=measure_device,
        )


def choose_model(arguments: argparse.Namespace) -> tuple[Config, ModelConfig]:
    """The configuration, and the model in it that `--model` means.

    `--model SOURCE` makes a configuration of its own, in which `--set models.0.…` still works;
    beside `--config`, and where it does not look like a source, it is a name.

    Raises:
        ConfigError: everything that is wrong in the YAML.
        ModelNotFoundError: no model of that name; the message lists the names.
    """
    name = arguments.model
    if name is not None and arguments.config is None and _looks_like_source(name):
        from twostroke.config import load_config

        stem = Path(name).name.removesuffix(".gguf") or "model"
        given = [f"models.0.name={json.dumps(stem)}", f"models.0.source={json.dumps(name)}"]
        config = load_config(None, [*given, *arguments.overrides])
        return config, config.models[0]
    config = options.read_config(arguments)
    if name is None:
        return config, config.models[0]
    for model in config.models:
        if model.name == name:
            return config, model
    known = ", ".join(model.name for model in config.models)
    raise ModelNotFoundError(
        f"{name!r} is neither a file or folder nor a model of the configuration; "
        f"its models are: {known}"
    )


def _looks_like_source(text: str) -> bool:
    return text.startswith("package:") or "/" in text or "\\" in text or Path(text).exists()


def stats(*completions: Completion) -> str:
    """`12 prompt tokens, 24 tokens (stop), TTFT 45 ms, 98.1 tokens/s`; of choices, of all."""
    from twostroke.life.together import together

    timings = together(completions)
    num_tokens = sum(each.num_completion_tokens for each in completions)
    parts = [
        f"{completions[0].num_prompt_tokens} prompt tokens",
        f"{num_tokens} tokens ({', '.join(each.finish_reason for each in completions)})",
    ]
    if timings.ttft_ms is not None:
        parts.append(f"TTFT {timings.ttft_ms:.0f} ms")
    if timings.decode_tokens_per_s is not None:
        parts.append(f"{timings.decode_tokens_per_s:.1f} tokens/s")
    return ", ".join(parts)
