"""The open backends of a model: who closes them, and opens them again where they are lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.backends.choose import Opened, reopen
from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import Backend
from twostroke.types import Stroke


class OpenBackends:
    """Owns one backend that serves both strokes, or one for each; `by_stroke` says which.

    `options` are those that each was opened with; without them, as where two backends have half of
    the layers each, devices stay open for as long as the model is.
    """

    def __init__(
        self,
        plugins: Plugins,
        opened: Mapping[Stroke, Opened],
        options: Mapping[Stroke, Mapping[str, Any]] | None = None,
    ) -> None:
        self.by_stroke = dict(opened)
        self._plugins = plugins
        self._options = options or {}
        self.can_reopen = options is not None
        self._to_close = self._different()

    @property
    def pair(self) -> tuple[Backend, Backend]:
        """Those of prefill and decode."""
        return self.by_stroke[Stroke.PREFILL].backend, self.by_stroke[Stroke.DECODE].backend

    def reopen(self, *, is_hung: bool) -> tuple[Backend, Backend]:
        """Closes what is open and opens the same devices anew; see `ReopenBackends`.

        What hangs cannot be closed: it stays as it is until the process ends.

        Raises:
            TwostrokeError: a device is not there, or cannot be opened.
        """
        if is_hung:
            self._to_close.clear()
        self.close()
        prefill, decode = (self.by_stroke[stroke] for stroke in (Stroke.PREFILL, Stroke.DECODE))
        is_one = prefill.backend is decode.backend
        prefill = self._open(Stroke.PREFILL, prefill)
        decode = prefill if is_one else self._open(Stroke.DECODE, decode)
        self.by_stroke.update({Stroke.PREFILL: prefill, Stroke.DECODE: decode})
        return self.pair

    def close(self) -> None:
        """Closes each once; doing so twice is harmless."""
        while self._to_close:
            self._to_close.pop().close()

    def _open(self, stroke: Stroke, lost: Opened) -> Opened:
        opened = reopen(self._plugins, lost, self._options[stroke])
        self._to_close.append(opened.backend)
        return opened

    def _different(self) -> list[Backend]:
        return list({id(o.backend): o.backend for o in self.by_stroke.values()}.values())
