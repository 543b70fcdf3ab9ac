"""Where a model comes from: a Hugging Face folder, a hub id or a .gguf file, checked before use.

Every check here reads a few kilobytes: what is missing, truncated or unknown is said before the
heavy work begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twostroke.bundle import MANIFEST_NAME
from twostroke.errors import ExportError
from twostroke.source import locate
from twostroke_export.folder import check_folder
from twostroke_export.gguf_file import check_gguf
from twostroke_export.hub import download

# owner/name/file.gguf and owner/name@revision; a plain owner/name is `locate`'s to know.
_HUB_FORM = re.compile(r"\w[\w.-]*/\w[\w.-]*(/\w[\w./-]*\.gguf(@[\w./-]+)?|@[\w./-]+)")


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
        InstallError: it lies in a Python package that is not installed.
    """
    is_hub_form = _HUB_FORM.fullmatch(source) is not None and not Path(source).exists()
    located = source if is_hub_form else locate(source)
    if isinstance(located, Path):
        return _local(located)
    path, facts = download(located)
    found = _local(path)
    name = facts["id"].rpartition("/")[2] if found.gguf_file is None else found.name
    return Source(found.folder, name, found.gguf_file, facts, found.gguf_metadata)


def _local(path: Path) -> Source:
    if path.is_dir():
        if (path / MANIFEST_NAME).is_file():
            raise ExportError(f"{path} is a bundle already; serve it, or name its source model.")
        gguf_files = sorted(path.glob("*.gguf"))
        if not (path / "config.json").is_file() and len(gguf_files) == 1:
            return _gguf(gguf_files[0])
        return Source(path, path.name, facts={"kind": "folder", **check_folder(path)})
    if path.suffix != ".gguf":
        raise ExportError(
            f"{path} is neither a folder nor a .gguf file; name the model's folder instead."
        )
    return _gguf(path)


def _gguf(path: Path) -> Source:
    facts, metadata = check_gguf(path)
    facts = {"kind": "gguf", "file": path.name, **facts}
    return Source(path.parent, path.stem, path.name, facts, metadata)
