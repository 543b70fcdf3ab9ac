"""Where a model comes from: a Hugging Face folder, a hub id or a .gguf file, checked before use.

Nearly every check here reads a few kilobytes: what is missing, truncated or unknown is said before
the heavy work begins, and before the seconds that importing torch takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from twostroke.bundle import MANIFEST_NAME, is_foreign
from twostroke.errors import ExportError
from twostroke.source import locate
from twostroke_export.adapter import Adapter, find_adapter
from twostroke_export.context import context_limit
from twostroke_export.folder import check_folder, weight_shapes
from twostroke_export.gguf_file import CONTEXT_LENGTH, check_gguf
from twostroke_export.hub import download

# owner/name/file.gguf and owner/name@revision; a plain owner/name is `locate`'s to know.
_HUB_FORM = re.compile(r"\w[\w.-]*/\w[\w.-]*(/\w[\w./-]*\.gguf(@[\w./-]+)?|@[\w./-]+)")


@dataclass(frozen=True, slots=True)
class Source:
    """A model on this machine. `gguf_file` names the file inside `folder`, if it is one.

    `facts` go into the manifest: kind, names, hashes; no path of this machine. `limit_tokens` is
    the model's longest context, None where its files name none (or `find` has not read it).
    `adapter` is merged into its weights after the load.
    """

    folder: Path
    name: str
    gguf_file: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    gguf_metadata: dict[str, Any] = field(default_factory=dict)
    limit_tokens: int | None = None
    adapter: Adapter | None = None

    @property
    def full_name(self) -> str:
        """The name of what it makes: the model's, and its adapter's."""
        return self.name if self.adapter is None else f"{self.name}-{self.adapter.name}"


def find(source: str, adapter: Path | None = None) -> Source:
    """Finds (or downloads) `source` and checks all that can be checked without importing torch.

    Raises:
        ExportError: nothing is there, or it is no model that can be exported, or the adapter in
            the folder `adapter` is none of that model; one sentence.
        InstallError: it lies in a Python package that is not installed.
    """
    found = _find(source)
    if adapter is None:
        return found
    by_file = {} if found.gguf_file else weight_shapes(found.folder)
    shapes = {name: shape for file in by_file.values() for name, shape in file.items()}
    adapted = find_adapter(adapter, found.name, shapes)
    facts = {**found.facts, "adapter": dict(adapted.facts)}
    return replace(found, adapter=adapted, facts=facts)


def _find(source: str) -> Source:
    is_hub_form = _HUB_FORM.fullmatch(source) is not None and not Path(source).exists()
    located = source if is_hub_form else locate(source)
    if isinstance(located, Path):
        return _local(located)
    path, facts = download(located)
    found = _local(path)
    name = facts["id"].rpartition("/")[2] if found.gguf_file is None else found.name
    return replace(found, name=name, facts=facts)


def resolve(source: str | Source) -> Source:
    """`find`, and what transformers makes of the config: imports torch, loads no weights.

    Raises:
        ExportError: as `find`, or a config with wrong values.
        InstallError: as `find`.
    """
    found = source if isinstance(source, Source) else find(source)
    return found if found.gguf_file else replace(found, limit_tokens=_limit_of(found.folder))


def _local(path: Path) -> Source:
    if path.is_dir():
        if (path / MANIFEST_NAME).is_file():
            raise ExportError(f"{path} is a bundle already; serve it, or name its source model.")
        if is_foreign(path):
            raise ExportError(
                f"{path} holds ONNX graphs already; serve it as it is, or name its source model."
            )
        gguf_files = sorted(path.glob("*.gguf"))
        if gguf_files and not (path / "config.json").is_file():
            return _gguf(_only(path, gguf_files))
        return Source(path, path.name, facts={"kind": "folder", **check_folder(path)})
    if path.suffix != ".gguf":
        raise ExportError(
            f"{path} is neither a folder nor a .gguf file; name the model's folder instead."
        )
    return _gguf(path)


def _only(folder: Path, files: list[Path]) -> Path:
    if len(files) > 1:
        listed = ", ".join(file.name for file in files[:4]) + (", …" if len(files) > 4 else "")
        raise ExportError(f"{folder} holds {len(files)} .gguf files ({listed}); name one of them.")
    return files[0]


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
