"""Token ids as bytes, four each, so that comparing prompts is the C library's work."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from twostroke.types import TokenId

_TYPECODE = "I" if array("I").itemsize == 4 else "L"
_ID_BYTES = 4


def token_bytes(ids: Iterable[TokenId]) -> bytes:
    """Token ids as bytes, `_ID_BYTES` each."""
    return array(_TYPECODE, ids).tobytes()


def num_ids(tokens: bytes) -> int:
    """How many ids such bytes hold."""
    return len(tokens) // _ID_BYTES


def first_ids(tokens: bytes, num_tokens: int) -> bytes:
    """The first `num_tokens` ids."""
    return tokens[: num_tokens * _ID_BYTES]


def common_tokens(first: bytes, second: bytes) -> int:
    """How many ids two prompts begin with in common."""
    same, end = 0, min(len(first), len(second))
    step = 16 * _ID_BYTES  # most prompts differ at once, others share much: ever longer pieces
    while same < end and first[same : same + step] == second[same : same + step]:
        same, step = same + step, 4 * step
    if same >= end:
        return end // _ID_BYTES
    end = min(end, same + step)  # the first difference is before here, or one prompt ends here
    while same < end:
        middle = same + max(_ID_BYTES, (end - same) // 2 // _ID_BYTES * _ID_BYTES)
        if first[same:middle] == second[same:middle]:
            same = middle
        elif middle - same == _ID_BYTES:
            break
        else:
            end = middle
    return same // _ID_BYTES
