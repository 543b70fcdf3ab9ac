"""The key file: a JSON object with the version of its format and the keys, their secrets hashed.

    {"version": 1, "keys": [{"name": "alice", "id": "…", "hash": "sha256:…", "created_at": "…"}]}

A file is written whole beside the old one and put in its place, under a lock, so that a reader sees
the one or the other and no writer loses another's work. `docs/keys.md` tells of the fields.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from twostroke.api_keys.entry import KeyEntry
from twostroke.errors import ConfigError
from twostroke.file_lock import file_lock

_MODE = 0o600
_MAX_BYTES = 64 * 1024**2
_MAX_WAITS = 20  # half seconds for another writer

Entries = tuple[KeyEntry, ...]


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    keys: Annotated[tuple[KeyEntry, ...], Field()] = ()


class KeyFile:
    """Reads and changes the keys in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Entries:
        """The keys, in the order they were made.

        Raises:
            ConfigError: there is no such file, or it holds something else.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            raise ConfigError(
                [f"{self.path}: no such file; `twostroke key create --file {self.path}` makes it"]
            ) from None
        except OSError as error:
            raise ConfigError([f"{self.path}: cannot be read: {error.strerror}"]) from None
        try:
            keys = _Content.model_validate_json(data).keys
        except ValidationError as error:
            raise ConfigError([f"{self.path}: {line}" for line in _problems(error)]) from None
        _check_unique(self.path, keys)
        return keys

    def change(self, edit: Callable[[Entries], Entries]) -> Entries:
        """Replaces the keys by what `edit` makes of them; a missing file has none. Answers them.

        One writer at a time: what another one writes meanwhile is not lost. A new file is for its
        owner only; an old one keeps its owner and its mode.

        Raises:
            ConfigError: the file cannot be read or written, or another process keeps its lock.
        """
        target = self.path.resolve()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(target.with_name(f".{target.name}.lock")):
                keys = edit(self.read() if target.exists() else ())
                _check_unique(self.path, keys)
                text = _Content(keys=keys).model_dump_json(indent=2, exclude_none=True)
                _write(target, text + "\n")
        except OSError as error:
            raise ConfigError(
                [f"{self.path}: cannot be written: {error.strerror or error}"]
            ) from None
        return keys


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    num_waits = 0

    def on_wait() -> None:
        nonlocal num_waits
        num_waits += 1
        if num_waits > _MAX_WAITS:
            raise ConfigError([f"{path}: another process has held this lock for ten seconds"])

    with file_lock(path, on_wait):
        yield


def _write(target: Path, text: str) -> None:
    """Puts a whole file in the place of the old one."""
    before = target.stat() if target.exists() else None
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_MODE if before is None else before.st_mode & 0o777)
        if before is not None and hasattr(os, "chown"):
            with suppress(PermissionError):  # not root: then it is the writer's own
                os.chown(name, before.st_uid, before.st_gid)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _problems(error: ValidationError) -> Iterator[str]:
    """Each with the place in the file and what was expected; never a value, which may be secret."""
    for each in error.errors(include_input=False, include_url=False):
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in each["loc"])
        yield f"{place.lstrip('.') or 'the file'}: {each['msg']}"


def _check_unique(path: Path, keys: Entries) -> None:
    for what in ("name", "id", "hash"):
        seen: set[str] = set()
        for entry in keys:
            value = getattr(entry, what)
            if value in seen:
                raise ConfigError([f"{path}: two keys have the {what} of {entry.name!r}"])
            seen.add(value)
