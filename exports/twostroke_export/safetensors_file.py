"""Reads the header of a safetensors file: a few kilobytes that tell what the file must hold.

The format: eight bytes, little-endian, give the length of a JSON object; each of its entries names
a tensor with `dtype`, `shape` and `data_offsets` behind the object. See
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostroke.errors import ExportError

Shapes = Mapping[str, tuple[int, ...]]

_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
_LENGTH_BYTES = 8
_POINTER = b"version https://git-lfs"
_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4} | dict.fromkeys(
    ("F16", "BF16", "I16", "U16"), 2
)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the file, by name; its data is not read.

    Raises:
        ExportError: no safetensors file, truncated, or its header contradicts itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(len(_POINTER))
        if head == _POINTER:
            raise ExportError(
                f"{path} is the pointer that Git LFS leaves for the file, not the weights; run "
                f"`git lfs pull` in its folder."
            )
        length = struct.unpack("<Q", head[:_LENGTH_BYTES])[0] if len(head) >= _LENGTH_BYTES else 0
        if not 0 < length <= _MAX_HEADER_BYTES:
            raise _no_safetensors(path)
        if size < _LENGTH_BYTES + length:
            raise _truncated(path, size, _LENGTH_BYTES + length)
        file.seek(_LENGTH_BYTES)
        raw = file.read(length)
    shapes, end = _parse(path, raw)
    if size < _LENGTH_BYTES + length + end:
        raise _truncated(path, size, _LENGTH_BYTES + length + end)
    return shapes


def _parse(path: Path, raw: bytes) -> tuple[dict[str, tuple[int, ...]], int]:
    """Shapes by name, and where the data of the last tensor ends behind the header, in bytes."""
    shapes, end = {}, 0
    try:
        for name, tensor in json.loads(raw).items():
            if name.startswith("__"):
                continue
            shapes[name] = tuple(int(size) for size in tensor["shape"])
            start, stop = tensor["data_offsets"]
            end = max(end, int(stop))
            _check_size(path, name, tensor, stop - start)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise _no_safetensors(path) from None
    return shapes, end


def _check_size(path: Path, name: str, tensor: Mapping[str, Any], num_bytes: int) -> None:
    item_bytes = _ITEM_BYTES.get(tensor["dtype"])
    if item_bytes is not None and item_bytes * math.prod(tensor["shape"]) != num_bytes:
        raise ExportError(
            f"{path} gives {name} {num_bytes:,} bytes, which {tensor['dtype']} of shape "
            f"{list(tensor['shape'])} do not take; download it again."
        )


def _no_safetensors(path: Path) -> ExportError:
    return ExportError(f"{path} is not a safetensors file; download it again.")


def _truncated(path: Path, size: int, expected: int) -> ExportError:
    return ExportError(
        f"{path} is truncated: {size:,} bytes instead of {expected:,}; download it again."
    )
