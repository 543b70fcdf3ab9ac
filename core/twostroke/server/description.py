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

    def __init__(
        self, surfaces: Callable[[], Sequence[Surface]], *, wants_key: Callable[[], bool]
    ) -> None:
        """`surfaces` answers all of them once the endpoint is put together; `wants_key` whether
        requests need a key right now.
        """
        self._surfaces = surfaces
        self._wants_key = wants_key
        self._written: dict[bool, bytes] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The document."""
        wants_key = self._wants_key()
        if wants_key not in self._written:
            self._written[wants_key] = await asyncio.to_thread(self._write, wants_key)
        return web.Response(body=self._written[wants_key], content_type="application/json")

    def _write(self, wants_key: bool) -> bytes:
        return dump(openapi_document(self._surfaces(), wants_key=wants_key))
