"""Where a model comes from: a Hugging Face folder, a hub id or a .gguf file, checked before use.

Every check here reads a few kilobytes: what is missing, truncated or unknown is said before the
heavy work begins.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twostroke.bundle import MANIFEST_NAME
from twostroke.errors import ExportError
from twostroke_export.folder import check_folder
from twostroke_export.gguf_file import check_gguf
from twostroke_export.hub import download

_PACKAGE = "package:"
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*(?:/[\w./-]+\.gguf)?(?:@[\w./-]+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """A model on this machine. `gguf_file` names the file inside `folder`, if it is one.

    `facts` go into the manifest: kind, names, hashes; no path of this machine.
    """

    folder: Path
    name: str
    gguf_file: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    gguf_metadata: dict[str, Any] = field(default_factory=dict)


def resolve(source: str) -> Source:
    """Finds (or downloads) `source` and checks it.

    Raises:
        ExportError: nothing is there, or it is no model that can be exported; one sentence.
    """
    if source.startswith(_PACKAGE):
        return _local(_inside_package(source), source)
    path = Path(source).expanduser()
    if path.exists():
        return _local(path, source)
    if path.suffix == ".gguf" and not _HUB_ID.fullmatch(source):
        raise ExportError(f"{source} does not exist; name an existing .gguf file.")
    if not _HUB_ID.fullmatch(source) or source.startswith((".", "/", "~")):
        raise ExportError(
            f"{source} does not exist; name a Hugging Face folder, a .gguf file, or a hub id "
            f"like owner/name."
        )
    path, facts = download(source)
    found = _local(path, source)
    name = facts["id"].rpartition("/")[2] if found.gguf_file is None else found.name
    return Source(found.folder, name, found.gguf_file, facts, found.gguf_metadata)


def _local(path: Path, source: str) -> Source:
    path = path.absolute()
    if path.is_dir():
        if (path / MANIFEST_NAME).is_file():
            raise ExportError(f"{source} is a bundle already; serve it, or name its source model.")
        gguf_files = sorted(path.glob("*.gguf"))
        if not (path / "config.json").is_file() and len(gguf_files) == 1:
            return _gguf(gguf_files[0])
        return Source(path, path.name, facts={"kind": "folder", **check_folder(path)})
    if path.suffix != ".gguf":
        raise ExportError(
            f"{source} is neither a folder nor a .gguf file; name the model's folder instead."
        )
    return _gguf(path)


def _gguf(path: Path) -> Source:
    facts, metadata = check_gguf(path)
    facts = {"kind": "gguf", "file": path.name, **facts}
    return Source(path.parent, path.stem, path.name, facts, metadata)


def _inside_package(source: str) -> Path:
    package, _, inside = source.removeprefix(_PACKAGE).partition("/")
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ExportError(
            f"{source} names the Python package {package!r}, which is not installed; install it "
            f"with pip, or name the model's file."
        )
    for folder in spec.submodule_search_locations:
        if inside and ".." not in Path(inside).parts and (Path(folder) / inside).exists():
            return Path(folder) / inside
    raise ExportError(f"The package {package!r} has no file {inside!r}; look at what it contains.")
