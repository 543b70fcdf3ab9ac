"""Pages of other sites, where `server.cors_origins` lets them in: what their browsers ask and read.

The protocol is that of https://fetch.spec.whatwg.org/#http-cors-protocol, without credentials: keys
travel in headers that a page must set itself, never in cookies that a browser adds.
"""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import web

_ANY = "*"
_MAX_AGE_S = 600  # for how long a browser need not ask again
_ASKED_METHOD = "Access-Control-Request-Method"


class Cors:
    """Which origins may read answers. Immutable."""

    def __init__(self, origins: Collection[str] = ()) -> None:
        """`origins` are `scheme://host[:port]`, or `*` for all."""
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def allows(self, origin: str | None) -> bool:
        """Whether pages of this origin were let in; not so where a request names none."""
        if not origin:
            return False
        return _ANY in self._origins or origin.lower() in self._origins

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks first; None for any other request.

        It carries no key, so it says nothing but which methods the path has.
        """
        if request.method != "OPTIONS" or _ASKED_METHOD not in request.headers:
            return None
        error = request.match_info.http_exception
        if not self.allows(request.headers.get("Origin")) or error is None or error.status != 405:
            return None
        headers = {
            "Access-Control-Allow-Methods": error.headers["Allow"],
            "Access-Control-Max-Age": str(_MAX_AGE_S),
        }
        if asked := request.headers.get("Access-Control-Request-Headers"):
            headers["Access-Control-Allow-Headers"] = asked
        if "Access-Control-Request-Private-Network" in request.headers:
            headers["Access-Control-Allow-Private-Network"] = "true"
        return web.Response(status=204, headers=headers)

    def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Lets pages of an allowed origin read `response`. Mutates it."""
        if not self._origins:
            return
        origin = request.headers.get("Origin")
        response.headers.add("Vary", "Origin")
        if origin and self.allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _ANY
