"""The source's logits, kept in a file while others are compared with them.

So the source is run once for all the bundles, and is never in memory together with one of them.
"""

from __future__ import annotations

import tempfile
from types import TracebackType

import numpy as np
import numpy.typing as npt

_DTYPE = np.dtype(np.float32)


class Yardstick:
    """Logits [positions, vocab] float32 in an unnamed temporary file, in the order of `append`.

    Takes `num_tokens * vocab_size * 4` bytes of disk until it is closed. Use it as a context
    manager.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.num_rows = 0
        self._file = tempfile.TemporaryFile(prefix="twostroke-logits-")  # noqa: SIM115  # __exit__

    def append(self, logits: npt.NDArray[np.float32]) -> None:
        """Keeps [rows, vocab] behind what is there."""
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(logits, _DTYPE).data)
        self.num_rows += len(logits)

    def rows(self, start: int, count: int) -> npt.NDArray[np.float32]:
        """A copy of rows [start, start + count), [count, vocab]."""
        row_bytes = self.vocab_size * _DTYPE.itemsize
        self._file.seek(start * row_bytes)
        raw = self._file.read(count * row_bytes)
        return np.frombuffer(raw, _DTYPE).reshape(count, self.vocab_size)

    def close(self) -> None:
        """Gives the disk back. Doing so twice is harmless."""
        self._file.close()

    def __enter__(self) -> Yardstick:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
