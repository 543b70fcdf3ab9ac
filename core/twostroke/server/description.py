"""`GET /openapi.json`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import web

from twostroke.server.openapi import openapi_document
from twostroke.server.replies import dump
from twostroke.server.surface import Surface


class Description:
    """Answers the description of an endpoint. It is made when it is first asked for, and kept."""

    def __init__(self, surfaces: Callable[[], Sequence[Surface]], *, wants_key: bool) -> None:
        """`surfaces` answers all of them once the endpoint is put together."""
        self._surfaces = surfaces
        self._wants_key = wants_key
        self._written: bytes | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The document."""
        if self._written is None:
            self._written = await asyncio.to_thread(self._write)
        return web.Response(body=self._written, content_type="application/json")

    def _write(self) -> bytes:
        return dump(openapi_document(self._surfaces(), wants_key=self._wants_key))
