"""Copies of tokens from buffer to buffer: on the device where it can, else through the host."""

from __future__ import annotations

import functools
from typing import TypeGuard

import numpy as np

from twostroke.backends.capabilities import ReachesFront
from twostroke.backends.protocol import Array, Buffer, storage_dtype


def copy_tokens(source: Buffer, target: Buffer, num_tokens: int) -> None:
    """Copies the first tokens of one buffer to the front of another, [rows, kv_heads, *, head_dim].

    Mutates `target`; what lies behind the tokens in it is undefined afterwards. Rows, heads and
    dimensions are equal, and so are the dtypes.
    """
    if _reaches_front(target) and target.copy_front(source, num_tokens):
        return
    fill_tokens(read_tokens(source, num_tokens), target)


def read_tokens(source: Buffer, num_tokens: int) -> Array:
    """The first tokens of a buffer, [rows, kv_heads, num_tokens, head_dim]; perhaps a view."""
    if _reaches_front(source):
        return source.read_front(num_tokens)
    return source.read()[:, :, :num_tokens]


def fill_tokens(tokens: Array, target: Buffer) -> None:
    """Copies [rows, kv_heads, tokens, head_dim] to the front of [rows, kv_heads, *, head_dim].

    Mutates `target`; what lies behind the tokens in it is undefined afterwards.
    """
    if _reaches_front(target):
        target.write_front(tokens)
        return
    num_tokens = tokens.shape[2]
    if tokens.shape == tuple(target.shape):
        target.write(np.ascontiguousarray(tokens))
        return
    contents = target.read()  # [rows, kv_heads, capacity, head_dim]
    if contents.flags.writeable and np.may_share_memory(contents, target.read()):
        # Host memory: a row of a long context is mostly empty, so only its tokens are copied.
        contents[:, :, :num_tokens] = tokens
    else:
        whole = np.zeros(target.shape, storage_dtype(target.dtype))
        whole[:, :, :num_tokens] = tokens
        target.write(whole)


def _reaches_front(buffer: Buffer) -> TypeGuard[ReachesFront]:
    return _has_front(type(buffer))


@functools.cache
def _has_front(kind: type[Buffer]) -> bool:
    """Asked once a class: Python 3.11 takes longer to look than the copy of a layer does."""
    return issubclass(kind, ReachesFront)
