"""The secret of a key, and the digest that stands for it wherever something is kept.

A secret made here has 256 random bits, so nobody finds it by trying, with however fast a hash. That
is why its digest is a plain SHA-256: slow, salted hashes protect what people think up, and would
cost every request their time.
"""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "tsk_"  # so that people and scanners know one where it lies about
SHOWN_DIGEST = r"sha256:[0-9a-f]{64}"


def new_secret() -> str:
    """A fresh one: the prefix and 256 bits in 43 characters of base64url."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """SHA-256 of the secret in UTF-8, 32 bytes; escaped surrogates are the bytes they stand for."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def show_digest(value: bytes) -> str:
    """`sha256:` and 64 hex digits."""
    return f"sha256:{value.hex()}"


def read_digest(text: str) -> bytes | None:
    """The digest that `show_digest` wrote; None for any other text."""
    found = re.fullmatch(SHOWN_DIGEST, text)
    return bytes.fromhex(text.removeprefix("sha256:")) if found else None
