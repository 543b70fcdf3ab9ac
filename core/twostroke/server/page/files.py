"""The page's files, read once: their bytes, plain and compressed, and a tag for each version."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Only files of these kinds are served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file. `tag` is a strong entity tag, with its quotes; it changes with the content."""

    content_type: str
    tag: str
    plain: bytes
    compressed: bytes


@cache
def page_files() -> dict[str, PageFile]:
    """Every file of the page by its path below `static`, with slashes.

    Takes some 20 ms the first time, and is kept for as long as the process lives.
    """
    paths = sorted(path for path in STATIC.rglob("*") if path.suffix in _TYPES)
    return {path.relative_to(STATIC).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> PageFile:
    plain = path.read_bytes()
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return PageFile(_TYPES[path.suffix], tag, plain, gzip.compress(plain, 6, mtime=0))
