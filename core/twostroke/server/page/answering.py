"""`GET /` and `GET /page/{path}`: the page's files, for browsers that may keep them.

Nothing in them is secret, so they need no key: the page itself asks for one and sends it along with
what it asks. A browser keeps the files and asks by their tags whether they are still the same.
"""

from __future__ import annotations

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.server.page.files import INDEX, page_files
from twostroke.server.surface import Route, Surface

PATH = "/page/"

# Scripts and styles come from here and nowhere else, and nothing is ever asked of another host.
# Text becomes elements through DOMPurify only: other strings are refused by the browser.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "Cache-Control": "no-cache",  # keep it, but ask whether it is still the same
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Frame-Options": "DENY",
}


async def index(request: web.Request) -> web.StreamResponse:
    """Answers `GET /`."""
    return _answer(request, INDEX)


async def page_file(request: web.Request) -> web.StreamResponse:
    """Answers `GET /page/{path}`."""
    return _answer(request, request.match_info["path"])


def _answer(request: web.Request, path: str) -> web.Response:
    """A file, or 304 for who has it already.

    Raises:
        RequestError: 404, there is no such file.
    """
    file = page_files().get(path)
    if file is None:
        raise RequestError(
            f"The page has no file {path[:80]!r}; it begins at /.", status=404, code="not_found"
        )
    headers = {**_HEADERS, "ETag": file.tag}
    if file.tag.strip('"') in {etag.value for etag in request.if_none_match or ()}:
        return web.Response(status=304, headers=headers)
    headers["Content-Type"] = file.content_type
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=file.plain, headers=headers)
    return web.Response(body=file.compressed, headers={**headers, "Content-Encoding": "gzip"})


SURFACE = Surface(
    name="page",
    api_version=1,
    summary="for people with a browser",
    routes=(
        Route("GET", "/", index, "The page: a chat and the life of each answer.", is_open=True),
        Route("GET", PATH + "{path:.+}", page_file, "The page's scripts and styles.", is_open=True),
    ),
)
