"""Moves the external data of saved graphs into one file that holds equal bytes once.

ONNX Runtime orders a graph's data as its hash tables happen to: two graphs over the same weights
get two files with the same pieces at different places. Here each piece is put into one shared
file, and the graphs are rewritten to find it there. Only the few fields concerned are read, from
the wire format (field numbers from onnx.proto), so that serving does not need the package `onnx`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from twostroke.bundle.wire import LENGTH_DELIMITED, Bytes, delimited, wire_fields

_GRAPH = 7  # ModelProto.graph
_INITIALIZER = 5  # GraphProto.initializer
_EXTERNAL_DATA = 13  # TensorProto.external_data
_KEY, _VALUE = 1, 2  # StringStringEntryProto
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


def _tensor(tensor: Bytes, location: str, place: Place) -> Bytes:
    """A TensorProto with its external data moved; unchanged where it has none."""
    entries: dict[str, str] = {}
    for found in wire_fields(memoryview(tensor)):
        if found.number == _EXTERNAL_DATA:
            pair = {part.number: part.text for part in wire_fields(found.value)}
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
        delimited(_EXTERNAL_DATA, delimited(_KEY, k.encode()) + delimited(_VALUE, v.encode()))
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


def _edit(message: Bytes, number: int, change: Callable[[Bytes], Bytes | None]) -> bytes:
    """A message with each field `number` changed; None drops it. All else stays as it is."""
    parts: list[Bytes] = []
    for found in wire_fields(memoryview(message)):
        if found.number != number or found.wire_type != LENGTH_DELIMITED:
            parts.append(found.whole)
        elif (changed := change(found.value)) is not None:
            parts.append(delimited(number, changed))
    return b"".join(parts)
