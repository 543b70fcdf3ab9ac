"""`GET /docs`: the description of the endpoint as a page. It needs nothing from elsewhere.

The page reads `/openapi.json` in the browser, so it tells of the surfaces of plugins too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).parent
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "Referrer-Policy": "no-referrer",
}


async def docs_page(request: web.Request) -> web.StreamResponse:
    """Answers `GET /docs`."""
    return _answer("index.html")


async def docs_file(request: web.Request) -> web.StreamResponse:
    """Answers `GET /docs/docs.css` and `/docs/docs.js`; the route knows no others."""
    return _answer(request.match_info["name"])


def _answer(name: str) -> web.Response:
    kind = _TYPES[Path(name).suffix]
    return web.Response(body=_bytes(name), content_type=kind, charset="utf-8", headers=_HEADERS)


@cache
def _bytes(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
