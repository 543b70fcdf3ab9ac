"""Moves the external data of saved graphs into one file that holds equal bytes once.

ONNX Runtime orders a graph's data as its hash tables happen to: two graphs over the same weights
get two files with the same pieces at different places. Here each piece is put into one shared
file, and the graphs are rewritten to find it there. Only the few protobuf fields concerned are
read, from the wire format (protobuf.dev, "Encoding"; field numbers from onnx.proto), so that
serving does not need the package `onnx`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_GRAPH = 7  # ModelProto.graph
_INITIALIZER = 5  # GraphProto.initializer
_EXTERNAL_DATA = 13  # TensorProto.external_data
_KEY, _VALUE = 1, 2  # StringStringEntryProto
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type
_PAGE_BYTES = 4096  # pieces begin on a page: ONNX Runtime maps them one by one
_PREPACKED = re.compile(r"(?P<key>[^|]*)(?P<pieces>(\|\d+;\d+;\d+)+)")

Place = Callable[[int, int], int]
"""Answers the new offset of the piece at (offset, length) of the graph's own file."""


class SharedData:
    """The shared file. Grows by the pieces that are not in it yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[int, int], list[int]] = {}  # (length, crc32): offsets
        path.touch()

    @property
    def name(self) -> str:
        """The file's name, as the graphs refer to it."""
        return self._path.name

    def take(self, graph: Path, data: Path) -> bytes:
        """The graph's bytes, with every reference to `data` moved into the shared file.

        Raises:
            ValueError: the graph refers to its data in a way that is not understood.
        """
        if not data.exists():
            return graph.read_bytes()
        with data.open("rb") as own, self._path.open("rb+") as shared:

            def place(offset: int, length: int) -> int:
                own.seek(offset)
                piece = own.read(length)
                if len(piece) != length:
                    raise ValueError(f"{data} ends before byte {offset + length}")
                return self._place(piece, shared)

            return relocate(graph.read_bytes(), self.name, place)

    def _place(self, piece: bytes, shared: BinaryIO) -> int:
        """The offset of `piece` in the shared file, where it is put if it is new."""
        offsets = self._known.setdefault((len(piece), zlib.crc32(piece)), [])
        for offset in offsets:
            shared.seek(offset)
            if shared.read(len(piece)) == piece:
                return offset
        end = shared.seek(0, os.SEEK_END)
        offset = -(-end // _PAGE_BYTES) * _PAGE_BYTES
        shared.seek(offset)
        shared.write(piece)
        offsets.append(offset)
        return offset


def relocate(model: bytes, location: str, place: Place) -> bytes:
    """A serialized ModelProto whose initializers lie in the file `location` at new offsets.

    Raises:
        ValueError: the wire format, or an entry of the external data, is not understood.
    """
    return _edit(
        model,
        _GRAPH,
        lambda graph: _edit(graph, _INITIALIZER, lambda t: _tensor(t, location, place)),
    )


def _tensor(tensor: bytes, location: str, place: Place) -> bytes:
    """A TensorProto with its external data moved; unchanged where it has none."""
    entries: dict[str, str] = {}
    for number, _, value, _ in _fields(tensor):
        if number == _EXTERNAL_DATA:
            pair = {n: text.decode() for n, _, text, _ in _fields(value)}
            entries[pair[_KEY]] = pair.get(_VALUE, "")
    if not entries:
        return tensor
    offset, length = int(entries.pop("offset", "0")), int(entries.pop("length"))
    entries.pop("location"), entries.pop("checksum", None)
    moved = {"location": location, "offset": str(place(offset, length)), "length": str(length)}
    for key, text in entries.items():
        moved[key] = _prepacked(key, text, place)
    kept = _edit(tensor, _EXTERNAL_DATA, lambda entry: None)
    return kept + b"".join(
        _delimited(_EXTERNAL_DATA, _delimited(_KEY, k.encode()) + _delimited(_VALUE, v.encode()))
        for k, v in moved.items()
    )


def _prepacked(key: str, value: str, place: Place) -> str:
    """An entry `kernel+hash|offset;length;checksum|...` with its pieces moved."""
    match = _PREPACKED.fullmatch(value)
    if not key.startswith("prepacked") or match is None:
        raise ValueError(f"the external data entry {key!r} is {value!r}")
    moved = [match["key"]]
    for piece in match["pieces"].split("|")[1:]:
        offset, length, checksum = piece.split(";")
        moved.append(f"{place(int(offset), int(length))};{length};{checksum}")
    return "|".join(moved)


def _edit(message: bytes, number: int, change: Callable[[bytes], bytes | None]) -> bytes:
    """A message with each field `number` changed; None drops it. All else stays as it is."""
    parts = []
    for found, wire_type, value, whole in _fields(message):
        if found != number or wire_type != _LENGTH_DELIMITED:
            parts.append(whole)
        elif (changed := change(value)) is not None:
            parts.append(_delimited(number, changed))
    return b"".join(parts)


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Each field of a message: number, wire type, value, and its bytes as a whole."""
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:
            _, end = _varint(message, position)
        elif wire_type == _LENGTH_DELIMITED:
            length, position = _varint(message, position)
            end = position + length
        elif wire_type in _FIXED_BYTES:
            end = position + _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} at byte {start}")
        if end > len(message):
            raise ValueError(f"the field at byte {start} is cut off")
        yield tag >> 3, wire_type, message[position:end], message[start:end]
        position = end


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message):
            raise ValueError("a number is cut off")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _delimited(number: int, value: bytes) -> bytes:
    return _encode(number << 3 | _LENGTH_DELIMITED) + _encode(len(value)) + value


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
