"""Reads a .gguf file's metadata once: transformers reads it anew for each thing it wants to know.

Parsing the tokens takes seconds, and transformers does it for the config, the generation config,
the tokenizer and the weights.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import gguf

_GGUFReader = gguf.GGUFReader


def open_reader(path: Path) -> gguf.GGUFReader:
    """The reader of a file; the last one is kept, until the file changes.

    Raises:
        Exception: of many kinds, where the file is damaged.
    """
    stat = path.stat()
    return _open(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _open(path: Path, _size: int, _changed_ns: int) -> gguf.GGUFReader:
    return _GGUFReader(path)


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """Within the block transformers gets the kept reader, and each table of names once.

    It asks for the table for every module of the model. Afterwards the reader is let go.
    """
    names = gguf.get_tensor_name_map
    gguf.GGUFReader = lambda path: open_reader(Path(path))
    gguf.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = _GGUFReader, names
        _open.cache_clear()
