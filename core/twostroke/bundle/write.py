"""Writes a bundle so that it is either whole or not there."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twostroke.bundle.digest import with_digest
from twostroke.bundle.manifest import MANIFEST_NAME, FileFact, Manifest
from twostroke.bundle.open import hash_file
from twostroke.errors import BundleError

_PART = ".part"  # ends the names of folders that are being written
_RANDOM = "?" * 16  # hexadecimal digits that make their names unique


@contextmanager
def sealing(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` when the block ends without an error.

    Whatever goes wrong inside (Ctrl-C included) leaves nothing behind.

    Raises:
        BundleError: `out` exists already, or its parent cannot be written.
    """
    out = out.absolute()
    if out.exists() or out.is_symlink():
        raise BundleError(f"{out} exists already; name another folder or remove it first.")
    # Named before it is made: no moment is left in which an interrupt would forget it.
    folder = out.with_name(f".{out.name}.{secrets.token_hex(len(_RANDOM) // 2)}{_PART}")
    try:
        _make(folder)
        yield folder
        if not (folder / MANIFEST_NAME).is_file():
            raise BundleError(f"{out} was not sealed: no {MANIFEST_NAME} was written.")
        folder.chmod(0o755)
        _publish(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(out: Path) -> None:
    """Removes what killed processes left of bundles that were to become `out`.

    Whoever calls it makes sure that no other process is writing that bundle now.
    """
    for leftover in out.parent.glob(f".{glob.escape(out.name)}.{_RANDOM}{_PART}"):
        shutil.rmtree(leftover, ignore_errors=True)


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Hashes every file below `folder`, writes `bundle.json`, and returns what it wrote.

    Mutates `folder`: adds or replaces its manifest. Flushes it to the disk, so that a crash
    after the rename cannot leave an empty manifest.
    """
    files = {
        path.relative_to(folder).as_posix(): FileFact(
            num_bytes=path.stat().st_size, sha256=hash_file(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST_NAME
    }
    sealed = with_digest(manifest.model_copy(update={"files": files}))
    _write(folder / MANIFEST_NAME, sealed)
    return sealed


def rewrite_manifest(root: Path, manifest: Manifest) -> None:
    """Puts another `bundle.json` in the place of a bundle's, in one step.

    Raises:
        BundleError: the folder cannot be written.
    """
    # Not in the list of files, so a copy that a crash leaves behind does no harm.
    beside = root / f".{MANIFEST_NAME}.{secrets.token_hex(len(_RANDOM) // 2)}{_PART}"
    try:
        _write(beside, manifest)
        beside.replace(root / MANIFEST_NAME)
    except OSError as error:
        raise BundleError(
            f"{root / MANIFEST_NAME} cannot be written: {error.strerror}; nothing was changed."
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def _write(path: Path, manifest: Manifest) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(with_digest(manifest).model_dump_json(indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _make(folder: Path) -> None:
    """Makes a folder that is private to its owner until it is published."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(0o700)
    except OSError as error:
        raise BundleError(f"{folder.parent} cannot be written: {error.strerror}.") from error


def _publish(folder: Path, out: Path) -> None:
    """Renames `folder` to `out`; a bundle that another process put there meanwhile stays."""
    try:
        folder.rename(out)
    except OSError as error:
        raise BundleError(
            f"{out} could not be put in place ({error.strerror}); another export may have "
            f"written it meanwhile."
        ) from error
