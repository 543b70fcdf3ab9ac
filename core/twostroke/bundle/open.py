"""Opens a bundle: nothing in it is used before its files, paths and hashes are checked."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ValidationError

from twostroke.bundle.digest import digest_of
from twostroke.bundle.manifest import FORMAT_VERSION, MANIFEST_NAME, FileFact, Manifest
from twostroke.errors import BundleError
from twostroke.types import Stroke

_CHUNK_BYTES = 4 * 1024**2
_MAX_MANIFEST_BYTES = 16 * 1024**2
_REPAIR = "Export the model again with `twostroke export`, or copy the whole bundle again."


@dataclass(frozen=True, slots=True)
class Bundle:
    """A checked bundle. `root` is absolute; every file of the manifest is a plain file below it.

    `origin` says in words what other tool wrote the folder; None for twostroke's own.
    """

    root: Path
    manifest: Manifest
    origin: str | None = None

    def graph(self, stroke: Stroke, dialect: str | None = None) -> Path:
        """The path of a stroke's graph in a dialect (None: the bundle's default).

        Raises:
            BundleError: the bundle has no such graph; the message says which it has.
        """
        graph = self.manifest.graph(stroke, dialect)
        if graph is None:
            held = " and ".join(self.manifest.dialects)
            raise BundleError(
                f"{self.root} has no {stroke} graph of the {dialect} dialect, only {held}. "
                f"Export the model again with --dialect {dialect}, or with --dialect both."
            )
        return self.root / graph.file

    def file(self, name: str) -> Path | None:
        """The path of a file that the manifest lists, or None where it lists no such file."""
        return self.root / name if name in self.manifest.files else None

    @property
    def num_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(fact.num_bytes for fact in self.manifest.files.values())


def is_bundle(path: Path) -> bool:
    """True where `path` is a folder with a manifest; says nothing of its being whole."""
    return (path / MANIFEST_NAME).is_file()


def open_bundle(path: Path, *, check_hashes: bool = True) -> Bundle:
    """Reads the manifest and checks every file it lists; reads nothing else.

    Args:
        path: the bundle's folder.
        check_hashes: False skips reading the files' contents; sizes and kinds are always checked.

    Raises:
        BundleError: naming the file that is missing, changed, of a forbidden kind or elsewhere.
    """
    root = path.absolute()
    manifest = read_manifest(root)
    halves = [half for cut in manifest.cuts for half in (cut.front, cut.back)]
    for name in (*(graph.file for graph in manifest.graphs), *halves, "tokenizer.json"):
        if name not in manifest.files:
            raise BundleError(f"{root / MANIFEST_NAME} does not list {name!r}. {_REPAIR}")
    for name, fact in manifest.files.items():
        _check_kind(root, name, fact)
    if check_hashes:
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            hashes = pool.map(lambda name: hash_file(root / name), manifest.files)
            for (name, fact), found in zip(manifest.files.items(), hashes, strict=True):
                if found != fact.sha256:
                    raise BundleError(
                        f"{root / name} is not the file that was exported: its SHA-256 differs "
                        f"from {MANIFEST_NAME}. {_REPAIR}"
                    )
    return Bundle(root, manifest)


def read_manifest(root: Path) -> Manifest:
    """Reads `bundle.json` alone.

    Raises:
        BundleError: no folder, no manifest, or one of another format.
    """
    path = root / MANIFEST_NAME
    if not root.is_dir():
        raise BundleError(f"{root} is not a folder; a bundle is one with a {MANIFEST_NAME} in it.")
    try:
        info = path.lstat()
        is_plain = stat.S_ISREG(info.st_mode) and info.st_nlink == 1
        if not is_plain or info.st_size > _MAX_MANIFEST_BYTES:
            raise BundleError(f"{path} is no plain file or too large to be a manifest. {_REPAIR}")
        text = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(
            f"{root} has no {MANIFEST_NAME}, so it is not a bundle. "
            f"Make one with `twostroke export SOURCE {root.name or 'OUT'}`."
        ) from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.") from error
    _check_format(path, text)
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BundleError(f"{path} is damaged: {where}: {first['msg']}. {_REPAIR}") from None
    _check_digest(path, text, manifest)
    return manifest


def _check_digest(path: Path, text: bytes, manifest: Manifest) -> None:
    """Refuses facts that were changed, though each of them may look right."""
    try:
        found = digest_of(json.loads(text))
    except (ValueError, RecursionError):  # pydantic reads a little more than json does
        found = None
    if found is None or found != manifest.manifest_sha256:
        raise BundleError(
            f"{path} is not as it was exported: its own SHA-256 differs. What a request or the "
            f"YAML may set is set there, not in the bundle. {_REPAIR}"
        )


def _check_format(path: Path, text: bytes) -> None:
    """Looked at first: the keys of another format would be called faults."""
    try:
        found = _Format.model_validate_json(text).format_version
    except ValidationError:
        return  # the whole manifest's own check says it better
    if found != FORMAT_VERSION:
        raise BundleError(
            f"{path} has format {found}, this twostroke reads {FORMAT_VERSION}. "
            f"Export the model again with this version."
        )


class _Format(BaseModel):
    format_version: int


def hash_file(path: Path) -> str:
    """SHA-256 of a file in hexadecimal; reads in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _check_kind(root: Path, name: str, fact: FileFact) -> None:
    """Refuses a file that is not the one the manifest tells of."""
    info = check_plain(root, name, named_by=MANIFEST_NAME, repair=_REPAIR)
    if info.st_size != fact.num_bytes:
        raise BundleError(
            f"{root / name} holds {info.st_size:,} bytes instead of {fact.num_bytes:,}. {_REPAIR}"
        )


def check_plain(root: Path, name: str, *, named_by: str, repair: str) -> os.stat_result:
    """Refuses what could lead out of the folder: the runtime would follow a hard link silently.

    Args:
        root: the folder.
        name: the file's path in it, with `/`.
        named_by: the file that names it, for the message.
        repair: the sentence that says what to do where it is missing.

    Raises:
        BundleError: it is missing, a link, a device, or lies elsewhere.
    """
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or ":" in name or name in ("", "."):
        raise BundleError(f"{root / named_by} lists {name!r}, a path outside of the bundle.")
    folder, path = root, root / pure
    try:
        for part in pure.parts[:-1]:
            folder = folder / part
            if folder.is_symlink():
                raise BundleError(
                    f"{folder} is a symbolic link; a bundle holds plain folders only."
                )
        info = path.lstat()
    except FileNotFoundError:
        raise BundleError(f"{path} is missing. {repair}") from None
    except (OSError, ValueError) as error:  # a name too long, or with a character of no file
        raise BundleError(f"{str(path)!r} cannot be read: {error}. {repair}") from None
    if not stat.S_ISREG(info.st_mode):
        raise BundleError(f"{path} is not a plain file; a bundle holds no links or devices.")
    if info.st_nlink > 1:
        raise BundleError(
            f"{path} is a hard link to a file that may change elsewhere; copy it instead."
        )
    return info
