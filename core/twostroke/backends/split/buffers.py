"""Host memory that two backends read: a copy for each."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.backends.protocol import Array, Buffer


class TwoBuffers:
    """Two buffers with the same contents: what is written goes to both, the back one is read.

    The front one is made when it is asked for: logits, which the back alone writes, need none.
    """

    __slots__ = ("_front", "_make_front", "back")

    def __init__(self, make_front: Callable[[], Buffer], back: Buffer) -> None:
        self._make_front = make_front
        self._front: Buffer | None = None
        self.back = back

    @property
    def front(self) -> Buffer:
        """The front's buffer."""
        if self._front is None:
            self._front = self._make_front()
            self._front.write(self.back.read())
        return self._front

    @property
    def shape(self) -> tuple[int, ...]:
        """That of both."""
        return self.back.shape

    @property
    def dtype(self) -> str:
        """That of both."""
        return self.back.dtype

    def rows(self, start: int, count: int) -> TwoBuffers:
        """A view of rows [start, start + count) of both."""
        return TwoBuffers(lambda: self.front.rows(start, count), self.back.rows(start, count))

    def write(self, values: Array) -> None:
        """Copies `values` (same shape and dtype) into both."""
        if self._front is not None:
            self._front.write(values)
        self.back.write(values)

    def read(self) -> Array:
        """The contents of the back one, into which the logits are written."""
        return self.back.read()
