"""Where a model comes from: a Hugging Face folder, a hub id or a .gguf file, checked before use.

Every check here reads a few kilobytes: what is missing, truncated or unknown is said before the
heavy work begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from twostroke.bundle import MANIFEST_NAME
from twostroke.errors import ExportError
from twostroke.source import locate
from twostroke_export.context import context_limit
from twostroke_export.folder import check_folder
from twostroke_export.gguf_file import CONTEXT_LENGTH, check_gguf
from twostroke_export.hub import download

# owner/name/file.gguf and owner/name@revision; a plain owner/name is `locate`'s to know.
_HUB_FORM = re.compile(r"\w[\w.-]*/\w[\w.-]*(/\w[\w./-]*\.gguf(@[\w./-]+)?|@[\w./-]+)")


@dataclass(frozen=True, slots=True)
class Source:
    """A model on this machine. `gguf_file` names the file inside `folder`, if it is one.

    `facts` go into the manifest: kind, names, hashes; no path of this machine. `limit_tokens` is
    the model's longest context, None where its files name none.
    """

    folder: Path
    name: str
    gguf_file: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    gguf_metadata: dict[str, Any] = field(default_factory=dict)
    limit_tokens: int | None = None


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
    return replace(found, name=name, facts=facts)


def _local(path: Path) -> Source:
    if path.is_dir():
        if (path / MANIFEST_NAME).is_file():
            raise ExportError(f"{path} is a bundle already; serve it, or name its source model.")
        gguf_files = sorted(path.glob("*.gguf"))
        if not (path / "config.json").is_file() and len(gguf_files) == 1:
            return _gguf(gguf_files[0])
        facts = {"kind": "folder", **check_folder(path)}
        return Source(path, path.name, facts=facts, limit_tokens=_limit_of(path))
    if path.suffix != ".gguf":
        raise ExportError(
            f"{path} is neither a folder nor a .gguf file; name the model's folder instead."
        )
    return _gguf(path)


def _gguf(path: Path) -> Source:
    facts, metadata = check_gguf(path)
    facts = {"kind": "gguf", "file": path.name, **facts}
    limit = metadata.get(CONTEXT_LENGTH)
    return Source(path.parent, path.stem, path.name, facts, metadata, int(limit) if limit else None)


def _limit_of(folder: Path) -> int | None:
    from transformers import AutoConfig

    try:
        return context_limit(AutoConfig.from_pretrained(folder))
    except Exception as error:  # its validators raise errors of several libraries
        first_line = str(error).strip().splitlines()[0]
        raise ExportError(f"{folder / 'config.json'} is not valid: {first_line[:200]}.") from error
