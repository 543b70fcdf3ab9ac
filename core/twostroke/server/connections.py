"""Connections: what aiohttp does with bytes that are no request, and with idle clients.

aiohttp answers malformed requests in plain text and logs a traceback with the client's bytes.
Here they get the error object like everything else, and one line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, LineTooLong

from twostroke.errors import EngineError, RequestError
from twostroke.server.middleware import http_error_reply
from twostroke.server.replies import error_reply

logger = logging.getLogger("twostroke.server")

KEEPALIVE_TIMEOUT_S = 75.0  # also how long a client may take over its request's headers
_LINGERING_S = 5.0  # how long the rest of a refused body is read and thrown away


class _Connection(web.RequestHandler):
    __slots__ = ()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered: between two, or one whose headers are not here."""
        return self._current_request is None and not self._messages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes its place among the open connections; where there is none another one must go."""
        super().connection_made(transport)
        manager = self._manager
        assert isinstance(manager, HttpServer), "made by one"
        if not manager.make_room_for(self):
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers bytes that could not be parsed, or a fault outside of every handler.

        Raises:
            ConnectionError: the answer had begun, so the connection can only be closed.
        """
        if isinstance(exc, ConnectionError):
            raise exc  # a stream that was cut off; logged where it was
        if status >= 500:
            logger.error("a connection failed", exc_info=exc)
            if request.writer.output_size > 0:
                raise ConnectionAbortedError("the answer had begun")
            reply = error_reply(EngineError("Internal error."))
        else:
            name = type(exc).__name__ if exc else "unreadable"
            logger.info("refused a malformed HTTP request from %s (%s)", request.remote, name)
            reply = error_reply(_refusal(exc, name, status))
        reply.force_close()
        return reply

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A body that broke while the rest of it was thrown away is no fault of ours."""
        if isinstance(kw.get("exc_info"), web.RequestPayloadError):
            logger.info("closed a connection: the rest of its body could not be read")
        else:
            super().log_exception(*args, **kw)


def _refusal(fault: BaseException | None, name: str, status: int) -> RequestError:
    if isinstance(fault, ContentEncodingError):
        return RequestError(
            "The body's Content-Encoding is not supported here; send it as it is, or as gzip or "
            "deflate.",
            status=415,
            code="unsupported_media_type",
        )
    limit = "; its request line and each header may have 8190 bytes"
    return RequestError(
        f"This is not a well-formed HTTP request ({name})"
        f"{limit if isinstance(fault, LineTooLong) else ''}.",
        status=status,
        code="malformed_request",
    )


class HttpServer(web.Server):
    """aiohttp's low-level server with our connections. Handlers are cancelled on disconnect.

    At most `max_connections` are open. One more takes the place of the one that has been idle for
    longest, so that clients that only hold connections keep nobody out; where all are being
    answered it is closed at once.
    """

    def __init__(self, *args: Any, max_connections: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._max_connections = max_connections
        self._by_use: dict[_Connection, None] = {}  # the one that was used last stands last
        self._has_told = False

    def make_room_for(self, connection: _Connection) -> bool:
        """Whether it may stay; closes another one for it. Mutates."""
        self._by_use[connection] = None
        if len(self._by_use) <= self._max_connections:
            return True
        if not self._has_told:
            self._has_told = True
            logger.warning(
                "%d connections are open, which is server.max_connections; idle ones are closed "
                "for new ones (this is told once)",
                self._max_connections,
            )
        oldest = next((each for each in self._by_use if each.is_idle), connection)
        del self._by_use[oldest]
        if oldest is connection:
            return False
        oldest.force_close()
        return True

    def note_use(self, connection: web.RequestHandler) -> None:
        """A request has come over it. Mutates."""
        if isinstance(connection, _Connection) and connection in self._by_use:
            del self._by_use[connection]
            self._by_use[connection] = None

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forgets a connection. Mutates."""
        if isinstance(handler, _Connection):
            self._by_use.pop(handler, None)
        super().connection_lost(handler, exc)

    def __call__(self) -> web.RequestHandler:
        """A new connection's protocol."""
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp's switch for "none"
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            lingering_time=_LINGERING_S,
        )


def serve_app(server: web.Server, max_connections: int) -> HttpServer:
    """The server of a set-up application, with our connections instead of aiohttp's."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        http_server.note_use(request.protocol)
        try:
            return await server.request_handler(request)
        except web.HTTPException as error:  # raised before the middleware: a wrong Expect
            return http_error_reply(request, error)

    http_server = HttpServer(
        answer,
        max_connections=max_connections,
        request_factory=server.request_factory,
        handler_cancellation=True,
    )
    return http_server
