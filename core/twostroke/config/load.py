"""From a YAML file and `--set` flags to a checked `Config`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from twostroke.config.document import Document, KeyPath, Origin
from twostroke.config.overrides import apply_overrides
from twostroke.config.problems import find_problems
from twostroke.config.read import read_document, read_text
from twostroke.config.schema import Config
from twostroke.errors import ConfigError


def load_config(
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The file's settings with the flags' laid over them; no file is the built-in defaults.

    Relative sources and files are resolved: those of the YAML from its folder, those of flags from
    the working directory. `environ` None is the process's environment.

    Raises:
        ConfigError: everything that is wrong, in the order of the file, flags last.
    """
    variables = os.environ if environ is None else environ
    document = Document(Origin("", 0)) if path is None else read_document(path, variables)
    apply_overrides(document, overrides)
    return _config(document, Path.cwd() if path is None else path.parent)


def load_text(text: str, path: Path, *, environ: Mapping[str, str] | None = None) -> Config:
    """As `load_config`, of what will stand in the file `path`.

    Raises:
        ConfigError: everything that is wrong.
    """
    variables = os.environ if environ is None else environ
    return _config(read_text(text, path, variables), path.parent)


def _config(document: Document, folder: Path) -> Config:
    try:
        config = Config.model_validate(document.data)
    except ValidationError as error:
        document.problems += find_problems(document, error)
        config = None
    if config is None or document.problems:
        ordered = sorted(document.problems, key=lambda problem: problem.origin.order)
        raise ConfigError([problem.line() for problem in ordered])
    return _with_files(_with_sources(config, document, folder), document, folder)


def _with_sources(config: Config, document: Document, folder: Path) -> Config:
    models = []
    for index, model in enumerate(config.models):
        base = _base(document, ("models", index, "source"), folder)
        models.append(model.model_copy(update={"source": _absolute(model.source, base)}))
    return config.model_copy(update={"models": tuple(models)})


def _with_files(config: Config, document: Document, folder: Path) -> Config:
    """The files of the section `server`, made absolute."""
    server = config.server
    key_file = _absolute_file(server.key_file, _base(document, ("server", "key_file"), folder))
    files = {
        name: _absolute_file(value, _base(document, ("server", "tls", name), folder))
        for name, value in server.tls
    }
    changed = {"key_file": key_file, "tls": server.tls.model_copy(update=files)}
    return config.model_copy(update={"server": server.model_copy(update=changed)})


def _base(document: Document, path: KeyPath, folder: Path) -> Path:
    """Where a relative path begins: those of flags in the working directory."""
    return Path.cwd() if document.value_origin(path).place.startswith("--set") else folder


def _absolute_file(name: str | None, folder: Path) -> str | None:
    if name is None:
        return None
    return os.path.normpath(folder.absolute() / Path(name).expanduser())


def _absolute(source: str, folder: Path) -> str:
    """A path made absolute; hub ids and `package:` sources as they are.

    What looks like a path, or exists as one, is a path: the hub only gets what is neither.
    """
    if source.startswith("package:"):
        return source
    looks_like_path = source.startswith((".", "~", "/", "\\")) or source.endswith(".gguf")
    path = Path(os.path.normpath(folder.absolute() / Path(source).expanduser()))
    return str(path) if looks_like_path or path.exists() else source
