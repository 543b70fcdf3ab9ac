"""Stored prefixes in a folder, one file each, so that they survive a restart.

A file is a line of JSON (`_Header`), the token ids and the contents. It is written under another
name and then renamed, so that no half file is ever read; its checksum is checked when it is read.
Prompts are private: the folder and its files are the owner's alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from twostroke.engine.prefix_store import Contents, StoredPrefix
from twostroke.errors import ConfigError, EngineError

log = logging.getLogger(__name__)

FORMAT = 1
"""Raised when older files can no longer be read."""

_MAX_HEADER_BYTES = 4096
_MAX_WAITING = 8  # entries that wait to be written; more are not stored
_MAX_FETCHED = 4  # entries in memory that were read before somebody needs them
_SUFFIX = ".prefix"


class PrefixFiles:
    """The files of one model in a folder. `key` names all that their contents depend on."""

    def __init__(self, folder: Path, key: str) -> None:
        """Makes the folder and starts the thread that writes.

        Raises:
            ConfigError: the folder cannot be made or written.
        """
        self._folder = folder
        self._key = key
        self._waiting: queue.Queue[StoredPrefix | None] = queue.Queue(_MAX_WAITING)
        self._deleted: set[str] = set()  # while they waited
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="twostroke-prefixes-read")
        self._fetched: dict[str, Future[bytes]] = {}  # used by the engine's thread
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in folder.glob(f"*{_SUFFIX}.tmp"):
                left.unlink()
        except OSError as error:
            raise ConfigError(
                [
                    f"kv.prefixes.store_path: {folder} cannot be used ({error.strerror}). Name a "
                    f"folder that can be written, or null."
                ]
            ) from error
        self._thread = threading.Thread(
            target=self._write_all, name="twostroke-prefixes", daemon=True
        )
        self._thread.start()

    def scan(self) -> Iterator[StoredPrefix]:
        """The files of this model, least recently used first; one log line for all others."""
        num_skipped = 0
        for path in sorted(self._folder.glob(f"*{_SUFFIX}"), key=_used_at):
            try:
                with path.open("rb") as file:
                    header = self._read_header(file)
                    ids = file.read(header["num_id_bytes"])
                    entry = StoredPrefix(header["scope"], ids, header["num_bytes"])
                    if path != self._path(entry) or path.stat().st_size < file.tell():
                        raise ValueError("not the file that its name says")
            except (OSError, ValueError, KeyError, TypeError):
                num_skipped += 1
            else:
                yield entry
        if num_skipped:
            log.warning(
                "%s: %d files are damaged or belong to another model or version; they are left "
                "alone and may be deleted",
                self._folder,
                num_skipped,
            )

    def write(self, entry: StoredPrefix) -> bool:
        """Hands an entry to the writing thread; False where too many wait."""
        with self._lock:
            self._deleted.discard(self._path(entry).name)
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            return False
        return True

    def fetch(self, entry: StoredPrefix) -> bool:
        """Begins to read an entry in the background; True once `read` need not wait for it.

        True as well where so many were fetched, and not read since, that `read` will have to do it.
        """
        name = self._path(entry).name
        if name not in self._fetched:
            if len(self._fetched) >= _MAX_FETCHED:
                return True
            self._fetched[name] = self._reader.submit(self._read, entry)
        return self._fetched[name].done()

    def read(self, entry: StoredPrefix) -> bytes:
        """The contents of an entry, checked.

        Raises:
            EngineError: the file is gone or damaged.
        """
        fetched = self._fetched.pop(self._path(entry).name, None)
        # Others that nobody has come for are fetched again if somebody does.
        self._fetched = {name: one for name, one in self._fetched.items() if not one.done()}
        return self._read(entry) if fetched is None else fetched.result()

    def _read(self, entry: StoredPrefix) -> bytes:
        path = self._path(entry)
        try:
            with path.open("rb") as file:
                header = self._read_header(file)
                ids, contents = file.read(header["num_id_bytes"]), file.read()
            if _checksum(ids, contents) != header["sha256"] or ids != entry.ids:
                raise ValueError("its checksum is wrong")
            os.utime(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"The stored prefix {path} cannot be used ({error}); it is deleted, and the "
                f"prompt is computed."
            ) from error
        return contents

    def delete(self, entry: StoredPrefix) -> None:
        """Removes an entry's file, or sees to it that it is not written."""
        path = self._path(entry)
        with self._lock:
            self._deleted.add(path.name)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Waits until everything is written."""
        self._waiting.join()

    def close(self) -> None:
        """Writes what waits, and ends the threads."""
        self._waiting.put(None)
        self._thread.join()
        self._reader.shutdown()
        self._fetched.clear()

    def _write_all(self) -> None:
        while (entry := self._waiting.get()) is not None:
            try:
                self._write(entry)
            except OSError as error:
                log.warning("a prefix could not be stored in %s: %s", self._folder, error)
            finally:
                self._waiting.task_done()

    def _write(self, entry: StoredPrefix) -> None:
        contents = entry.contents
        assert contents is not None
        path = self._path(entry)
        unfinished = path.with_name(path.name + ".tmp")
        header = {
            "format": FORMAT,
            "key": self._key,
            "scope": entry.scope,
            "num_id_bytes": len(entry.ids),
            "num_bytes": len(contents),
            "sha256": _checksum(entry.ids, contents),
        }
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            file.writelines((entry.ids, contents))
        with self._lock:
            if path.name in self._deleted:
                unfinished.unlink()
                return
            unfinished.replace(path)
        entry.contents = None  # from now on it is in the file

    def _read_header(self, file: BinaryIO) -> dict[str, Any]:
        header = json.loads(file.readline(_MAX_HEADER_BYTES))
        if header["format"] != FORMAT or header["key"] != self._key:
            raise ValueError("of another version or model")
        return dict(header)

    def _path(self, entry: StoredPrefix) -> Path:
        name = hashlib.sha256(b"\0".join((self._key.encode(), entry.scope.encode(), entry.ids)))
        return self._folder / f"{name.hexdigest()[:40]}{_SUFFIX}"


def _checksum(ids: bytes, contents: Contents) -> str:
    digest = hashlib.sha256(ids)
    digest.update(contents)
    return digest.hexdigest()


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
