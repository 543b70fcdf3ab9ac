"""The wire format of protobuf, as far as .onnx files need it where there is no package `onnx`.

Source: protobuf.dev, "Encoding". Nothing is copied while a message is walked through, so that a
file of gigabytes may be a mapping of which only a few pages are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Bytes = bytes | memoryview
VARINT = 0
LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True)
class WireField:
    """One field of a message.

    `value` and `whole` are views of its bytes, without and with the tag (and length) before them;
    `number_value` is a varint's value.
    """

    number: int
    wire_type: int
    value: memoryview
    whole: memoryview
    number_value: int = 0

    @property
    def text(self) -> str:
        """The value as UTF-8.

        Raises:
            ValueError: it is not.
        """
        return bytes(self.value).decode("utf-8")


def wire_fields(message: memoryview) -> Iterator[WireField]:
    """Each field of a message, in its order.

    Raises:
        ValueError: the bytes are not of this format, or cut off.
    """
    position = 0
    while position < len(message):
        start = position
        tag, position = varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        number_value = 0
        if wire_type == VARINT:
            number_value, end = varint(message, position)
        elif wire_type == LENGTH_DELIMITED:
            length, position = varint(message, position)
            end = position + length
        elif wire_type in _FIXED_BYTES:
            end = position + _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"wire type {wire_type} at byte {start}")
        if number == 0 or end > len(message):
            raise ValueError(f"the field at byte {start} is cut off")
        yield WireField(number, wire_type, message[position:end], message[start:end], number_value)
        position = end


def varint(message: memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position behind it.

    Raises:
        ValueError: it has no end.
    """
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(message):
            break
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError(f"the number at byte {position} is cut off")


def delimited(number: int, value: Bytes) -> bytes:
    """A field with a length before its value, as bytes."""
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(value)) + value


def encode_varint(value: int) -> bytes:
    """A number, not negative, as bytes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
