"""Prefixes that had to leave the KV cache, kept in host memory or in files.

The least recently used go when there are too many bytes. An entry that another one begins with is
not kept twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from twostroke.engine.token_bytes import common_tokens, num_ids

Contents = bytes | memoryview
"""What the KV cache holds for a prefix: layer by layer, see `row_bytes`."""


@dataclass(slots=True, eq=False)
class StoredPrefix:
    """Token ids (see `token_bytes`) and what the KV cache held for them.

    `contents` is None where it waits in a file.
    """

    scope: str
    ids: bytes
    num_bytes: int
    contents: Contents | None = None

    @property
    def num_tokens(self) -> int:
        """How many tokens it holds."""
        return num_ids(self.ids)


class Files(Protocol):
    """Where entries survive a restart; see `PrefixFiles`."""

    def scan(self) -> Iterable[StoredPrefix]:
        """What is there, least recently used first."""
        ...

    def write(self, entry: StoredPrefix) -> bool:
        """Writes an entry in the background, then drops its contents; False: too much waits."""
        ...

    def fetch(self, entry: StoredPrefix) -> bool:
        """Begins to read an entry in the background; True once `read` need not wait for it."""
        ...

    def read(self, entry: StoredPrefix) -> Contents:
        """The contents of an entry that was written; raises where they are not what was."""
        ...

    def delete(self, entry: StoredPrefix) -> None:
        """Removes an entry's file."""
        ...

    def flush(self) -> None:
        """Waits until everything is written."""
        ...

    def close(self) -> None:
        """Writes what waits, and ends."""
        ...


class PrefixStore:
    """Entries of at most `max_bytes` together. Used by the engine's thread."""

    def __init__(self, max_bytes: int, files: Files | None = None) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.survives = files is not None  # a restart
        self._files = files
        self._entries: dict[tuple[str, bytes], StoredPrefix] = {}  # least recently used first
        for entry in files.scan() if files is not None else ():
            self._add(entry)

    def longest(self, scope: str, prompt: bytes) -> tuple[StoredPrefix | None, int]:
        """The entry of a scope that a prompt has most tokens in common with, and how many."""
        best: tuple[StoredPrefix | None, int] = None, 0
        for entry in self._entries.values():
            num_tokens = common_tokens(entry.ids, prompt) if entry.scope == scope else 0
            if num_tokens > best[1]:
                best = entry, num_tokens
        return best

    def is_at_hand(self, entry: StoredPrefix) -> bool:
        """Whether an entry can be read at once; begins to fetch one that cannot."""
        return entry.contents is not None or self._files is None or self._files.fetch(entry)

    def put(self, scope: str, ids: bytes, contents: Contents) -> None:
        """Stores a prefix, unless there is one that begins with it."""
        alike = [entry for entry in self._entries.values() if entry.scope == scope]
        for entry in alike:
            if entry.ids.startswith(ids):
                self._touch(entry)
                return
        if len(contents) > self.max_bytes:
            return
        for entry in alike:
            if ids.startswith(entry.ids):
                self.discard(entry)
        entry = StoredPrefix(scope, ids, len(contents), contents)
        if self._files is None or self._files.write(entry):
            self._add(entry)

    def read(self, entry: StoredPrefix) -> Contents:
        """The contents of an entry.

        Raises:
            Exception: its file is gone or damaged; the entry is not there any more.
        """
        contents = entry.contents  # the writing thread may drop it any time
        if contents is None:
            assert self._files is not None
            try:
                contents = self._files.read(entry)
            except Exception:
                self.discard(entry)
                raise
        self._touch(entry)
        return contents

    def discard(self, entry: StoredPrefix) -> None:
        """Forgets an entry; one that is not there is fine."""
        if self._entries.pop((entry.scope, entry.ids), None) is None:
            return
        self.num_bytes -= entry.num_bytes
        if self._files is not None:
            self._files.delete(entry)

    def flush(self) -> None:
        """Waits until what is stored would survive a restart, if it can."""
        if self._files is not None:
            self._files.flush()

    def close(self) -> None:
        """Writes what waits, and ends."""
        if self._files is not None:
            self._files.close()

    def _add(self, entry: StoredPrefix) -> None:
        self._entries[entry.scope, entry.ids] = entry
        self.num_bytes += entry.num_bytes
        while self.num_bytes > self.max_bytes:
            self.discard(next(iter(self._entries.values())))

    def _touch(self, entry: StoredPrefix) -> None:
        key = (entry.scope, entry.ids)
        if key in self._entries:
            self._entries[key] = self._entries.pop(key)
