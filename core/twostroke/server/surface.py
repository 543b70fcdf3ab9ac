"""What a surface is: some routes, and how errors look to its clients.

A plugin brings one through the hook `twostroke_surfaces`, as the packages of `server.surfaces` are
made. This module imports neither aiohttp nor pydantic, so that finding plugins costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twostroke.errors import PluginError, RateLimitError, RequestError, TwostrokeError

if TYPE_CHECKING:
    from aiohttp import web
    from pydantic import BaseModel

    from twostroke.config.schema import ServerConfig

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    SetUp = Callable[[web.Application, ServerConfig], None]

ErrorBody = Callable[[TwostrokeError], Mapping[str, Any]]

_VARIABLE = re.compile(r"\{[^{}]*(\{[^{}]*\}[^{}]*)*\}")


def error_body(error: TwostrokeError) -> dict[str, Any]:
    """OpenAI's error object, which is also the house's own."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    if isinstance(error, RateLimitError):
        kind = "tokens" if error.limit == "tokens" else "requests"
    param = error.param if isinstance(error, RequestError) else None
    return {"error": {"message": str(error), "type": kind, "param": param, "code": error.code}}


@dataclass(frozen=True, slots=True)
class Route:
    """One route: `path` is aiohttp's pattern, e.g. `/v1/models/{id:.+}`.

    `aliases` are other paths that answer the same. What describes it, and checks nothing: `body` is
    the shape of what is sent and `example` a body that works; `reply` is the shape of a whole JSON
    answer (a type that pydantic knows, or a JSON schema), which comes with `reply_statuses`;
    `streams` are the content types of other answers; `error_statuses` are those of errors beside
    the ones that any route may answer with. `is_open`: no key is asked for.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[BaseModel] | None = None
    reply: Any = None
    streams: str | tuple[str, ...] | None = None
    aliases: tuple[str, ...] = ()
    is_open: bool = False
    example: Mapping[str, Any] | None = None
    reply_statuses: tuple[int, ...] = (200,)
    error_statuses: tuple[int, ...] = ()

    @property
    def content_types(self) -> tuple[str, ...]:
        """Those of answers that are no whole JSON."""
        if self.streams is None:
            return ()
        return (self.streams,) if isinstance(self.streams, str) else self.streams

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that it answers."""
        return (self.path, *self.aliases)


@dataclass(frozen=True, slots=True)
class Surface:
    """An API that clients speak.

    `error_body` makes the JSON of an error on its routes; `key_headers` are where its clients put
    a key (`Authorization` as `Bearer KEY`, any other as it is). `set_up` is called once with the
    application, before it serves: what the surface keeps from one request to another goes there.
    """

    name: str
    api_version: int
    summary: str
    routes: tuple[Route, ...]
    error_body: ErrorBody = error_body
    key_headers: tuple[str, ...] = ("Authorization",)
    set_up: SetUp | None = None


def without_v1(*routes: Route) -> tuple[Route, ...]:
    """Routes below `/v1`, each of which also answers without that prefix."""
    return tuple(replace(r, aliases=(*r.aliases, r.path.removeprefix("/v1"))) for r in routes)


def check_routes(surfaces: Sequence[Surface]) -> None:
    """Proves that no two surfaces have one name, and no two routes one method and path.

    Raises:
        PluginError: names both surfaces and what they both bring.
    """
    names: set[str] = set()
    owners: dict[tuple[str, str], str] = {}
    for surface in surfaces:
        if surface.name in names:
            raise PluginError(
                f"two surfaces are named {surface.name!r}. Block the plugin that brings the second "
                "(plugins.block), or have it renamed."
            )
        names.add(surface.name)
        for method, path in _asked(surface):
            key = (method, _VARIABLE.sub("{}", path))
            if key in owners:
                raise PluginError(
                    f"the surfaces {owners[key]!r} and {surface.name!r} both answer {method} "
                    f"{path}. Block the plugin that brings one of them (plugins.block)."
                )
            owners[key] = surface.name


def _asked(surface: Surface) -> Iterator[tuple[str, str]]:
    for route in surface.routes:
        for path in route.paths:
            yield route.method, path
