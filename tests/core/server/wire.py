"""What comes back over a connection: whole, or piece by piece."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> JSON:
        """The error object; fails where the body is none."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "Traceback" not in error["message"]
        return error


class RawSocket:
    """Reads a chunked answer piece by piece."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")

    def head(self) -> bytes:
        """Status line and headers."""
        lines = []
        while (line := self._file.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines)

    def chunk(self) -> bytes | None:
        """The next chunk; b"" is the clean end; None means that the connection was cut."""
        try:
            size = self._file.readline()
            if not size.endswith(b"\r\n"):
                return None
            data = self._file.read(int(size, 16) + 2)
        except ConnectionError:
            return None
        return data[:-2] if data.endswith(b"\r\n") else None

    def chunks(self) -> tuple[list[bytes], bool]:
        """All chunks to the end, and whether the end was clean."""
        chunks = []
        while chunk := self.chunk():
            chunks.append(chunk)
        return chunks, chunk == b""

    def rest(self) -> bytes:
        """Everything to the end of the connection."""
        return self._file.read()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> RawSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
