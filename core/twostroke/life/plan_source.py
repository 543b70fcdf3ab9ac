"""Finds what is to be planned: a bundle, or the config of a model that is not exported yet.

Of a model on the hub only its config.json is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostroke.bundle import MANIFEST_NAME, is_bundle, is_foreign, open_bundle, open_foreign
from twostroke.errors import ConfigError, ExportError, InstallError
from twostroke.life.config_shape import shape_of
from twostroke.life.gguf_header import gguf_config
from twostroke.life.subject import Subject, subject_of_bundle, subject_of_shape
from twostroke.source import locate

_CONFIG = "config.json"


def find_subject(
    source: str,
    *,
    precision: str | None = None,
    kv_dtype: str | None = None,
    packs: bool = True,
    shares: bool = True,
) -> Subject:
    """The facts of `source`: a bundle, ONNX graphs, a model's folder, a .gguf file or a hub id.

    `precision` (int8 where it is None) and `kv_dtype` are for what is not exported yet; `packs` and
    `shares` as for `loaded_bytes`.

    Raises:
        BundleError, ExportError: nothing is there, or no decoder that can be planned.
        ConfigError: another precision or cache was asked of graphs that exist.
        InstallError: a hub id, without the package that downloads its config.
    """
    located = locate(source)
    if isinstance(located, str):
        config, name = _read(_download(located)), located
    else:
        folder = located.parent if located.name == MANIFEST_NAME else located
        if is_bundle(folder) or is_foreign(located):
            is_own = is_bundle(folder)
            bundle = open_bundle(folder, check_hashes=False) if is_own else open_foreign(located)
            subject = subject_of_bundle(bundle, packs=packs, shares=shares)
            _refuse_others(subject, precision, kv_dtype)
            return subject
        config, name = _local(located)
    return subject_of_shape(
        name,
        shape_of(config, str(located)),
        precision or "int8",
        kv_dtype=kv_dtype,
        packs=packs,
        shares=shares,
    )


def _refuse_others(subject: Subject, precision: str | None, kv_dtype: str | None) -> None:
    wanted = {"precision": (precision, subject.precision), "kv-dtype": (kv_dtype, subject.kv_dtype)}
    problems = [
        f"--{name} {asked} was asked for, but the graphs of {subject.name} are {found}; leave it "
        f"out, or name the source model"
        for name, (asked, found) in wanted.items()
        if asked not in (None, found)
    ]
    if problems:
        raise ConfigError(problems)


def _local(path: Path) -> tuple[Mapping[str, Any], str]:
    if path.suffix == ".gguf":
        return gguf_config(path), path.stem
    if path.name == _CONFIG:
        return _read(path), path.parent.name
    if not path.is_dir():
        raise ExportError(
            f"{path} is no model; name a bundle, a model's folder, its config.json or a .gguf file."
        )
    files = sorted(path.glob("*.gguf"))
    if files and not (path / _CONFIG).exists():
        if len(files) > 1:
            raise ExportError(f"{path} holds {len(files)} .gguf files; name one of them.")
        return gguf_config(files[0]), files[0].stem
    return _read(path / _CONFIG), path.name


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExportError(f"{path.parent} has no {path.name}; name a model's folder.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ExportError(f"{path} holds no JSON object; download it again.")
    return found


def _download(hub_id: str) -> Path:
    """The config.json of a model on the hub, from its cache where it is there already."""
    try:
        import huggingface_hub
    except ImportError:
        raise InstallError(
            f"There is no folder {hub_id}, and reading a config from the hub needs "
            f"huggingface_hub: pip install huggingface_hub"
        ) from None
    try:
        return Path(huggingface_hub.hf_hub_download(hub_id, _CONFIG))
    except Exception as error:  # HTTP clients, the disk and the hub fail in many ways
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"There is no folder or file at {hub_id}, and the config.json of a hub model of that "
            f"name could not be downloaded ({first_line[:200]}). Check the name and the network; "
            f"a private or gated model needs HF_TOKEN."
        ) from None
