"""Reads a request's body as strict JSON: whatever is not plain JSON is a 4xx, never a 500.

Python's own `json` takes more than the standard does: NaN, Infinity, numbers that overflow to
infinity, duplicate keys and lone surrogates. All of them are refused here, once, so that no
surface has to think of them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from aiohttp import web

from twostroke.errors import RequestError

BODY_TIMEOUT_S = 60.0  # a client that sends its body slower than this is let go
_THREAD_FROM_BYTES = 64 * 1024  # above it parsing would be felt by running streams
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UTF8_NAMES = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_ENCODINGS = frozenset({"", "identity", "gzip", "deflate", "br", "zstd"})  # aiohttp undoes them


async def read_json(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object. Any content type is taken (`curl -d` sends a form's), save
    multipart.

    Raises:
        RequestError: 400 for what is not a JSON object in UTF-8, 408 for a body that does not
            arrive, 413 for one that is too large, 415 for multipart
            and for an unknown Content-Encoding.
    """
    if request.content_type.startswith("multipart/"):
        raise RequestError(
            f"The body must be JSON, not {request.content_type}; send it with "
            "Content-Type: application/json.",
            status=415,
            code="unsupported_media_type",
        )
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise RequestError(
            f"The Content-Encoding {encoding[:40]!r} is not supported; send the body as it is, or "
            "as gzip or deflate.",
            status=415,
            code="unsupported_media_type",
        )
    charset = (request.charset or "utf-8").lower()
    if charset not in _UTF8_NAMES:
        raise RequestError(
            f"The body's charset {charset[:40]!r} is not supported; send JSON in UTF-8."
        )
    data = await _read(request)
    if len(data) < _THREAD_FROM_BYTES:
        return parse_object(data)
    return await asyncio.to_thread(parse_object, data)


async def _read(request: web.Request) -> bytes:
    limit = request.client_max_size
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(limit) from None
    except TimeoutError:
        raise RequestError(
            f"The body did not arrive within {BODY_TIMEOUT_S:g} s.",
            status=408,
            code="request_timeout",
        ) from None
    except web.RequestPayloadError:
        raise RequestError(
            "The body could not be read: its Content-Encoding or chunks are broken."
        ) from None


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        f"The body is larger than {limit_bytes} bytes, the limit of this server "
        "(server.max_body in its configuration).",
        status=413,
        code="request_too_large",
    )


def parse_object(data: bytes) -> dict[str, Any]:
    """Parses bytes as one JSON object, strictly.

    Raises:
        RequestError: the bytes are empty, not UTF-8, not JSON, or JSON that strict readers refuse.
    """
    if not data.strip():
        raise RequestError('The body is empty; send a JSON object, e.g. {"prompt": "Hello"}.')
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise RequestError(f"The body is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise RequestError(
            f"The body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except RecursionError:
        raise RequestError("The body's JSON is nested too deeply.") from None
    except ValueError:  # Python refuses integers of more than a few thousand digits
        raise RequestError("The body holds a number with too many digits.") from None
    if not isinstance(value, dict):
        raise RequestError('The body must be a JSON object, e.g. {"prompt": "Hello"}.')
    if _SURROGATE_ESCAPE.search(text):
        _refuse_lone_surrogates(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"The body holds {name}, which is not JSON; numbers must be finite.")


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise RequestError(f"The number {literal[:40]} is too large; numbers must be finite.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise RequestError(f"The key {twice[:80]!r} stands twice in one object.", param=twice[:80])
    return names


def _refuse_lone_surrogates(value: Any) -> None:
    """Walks without recursion: the value may be nested as deep as the parser allows."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        path, item = left.pop()
        if isinstance(item, str):
            if _SURROGATE.search(item):
                raise RequestError(
                    f"{path} holds half of a surrogate pair, which is no character; send the "
                    "whole character.",
                    param=path,
                )
        elif isinstance(item, list):
            left.extend((f"{path}[{i}]", child) for i, child in enumerate(item))
        elif isinstance(item, dict):
            for key, child in item.items():
                if _SURROGATE.search(key):
                    raise RequestError("A key holds half of a surrogate pair.")
                left.append((f"{path}.{key}" if path else key, child))
