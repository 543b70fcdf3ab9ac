"""What a right YAML may still have wrong: names of backends, places of files, doors left open.

Nothing is loaded and no network is asked; of another tool's folder only small files and the
declarations of its graphs are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from twostroke.api_keys import KeyFile
from twostroke.backends.choose import AUTO, check_name
from twostroke.backends.discovery import Plugins
from twostroke.bundle import is_foreign, open_foreign
from twostroke.config.exposure import open_doors
from twostroke.config.schema import Config, ModelConfig, ServerConfig
from twostroke.errors import TwostrokeError
from twostroke.server.tls import Tls
from twostroke.source import locate


def find_faults(config: Config, plugins: Plugins) -> list[str]:
    """Everything that a start would refuse for sure, each as `KEY PATH: sentence`."""
    return [*_server_faults(config.server)] + [
        f"models[{index}].{fault}"
        for index, model in enumerate(config.models)
        for fault in _faults(model, plugins)
    ]


def hub_ids(config: Config) -> list[str]:
    """The sources that are no paths here; whether the hub has them only the network knows."""
    ids = []
    for model in config.models:
        try:
            located = locate(model.source)
        except TwostrokeError:
            continue  # a fault, and told as one
        if isinstance(located, str):
            ids.append(located)
    return ids


def _server_faults(server: ServerConfig) -> Iterator[str]:
    for door in open_doors(server):
        yield f"server: {door}"
    try:
        if server.key_file is not None:
            KeyFile(Path(server.key_file)).read()
    except TwostrokeError as error:
        yield f"server.key_file: {error}"
    try:
        if server.tls.certificate is not None:
            Tls(server.tls).check()
    except TwostrokeError as error:
        yield str(error)


def _faults(model: ModelConfig, plugins: Plugins) -> Iterator[str]:
    try:
        located = locate(model.source)
        if isinstance(located, Path) and is_foreign(located):
            open_foreign(located)
    except TwostrokeError as error:
        yield f"source: {error}"
    for path, name in _backend_names(model):
        if name == AUTO and path.startswith("fallback"):
            yield f"{path}: auto is no backend; name the ones that may take over."
            continue
        try:
            check_name(plugins, name)
        except TwostrokeError as error:
            yield f"{path}: {error}"


def _backend_names(model: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "backend", model.backend
    if model.prefill.backend is not None:
        yield "prefill.backend", model.prefill.backend
    if model.decode.backend is not None:
        yield "decode.backend", model.decode.backend
    for index, name in enumerate(model.fallback):
        yield f"fallback[{index}]", name
