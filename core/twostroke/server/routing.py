"""Which route and which surface a request has asked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from aiohttp import web

from twostroke.server.surface import ErrorBody, Route, Surface, error_body


class Routing:
    """The routes of an application by what aiohttp calls them. Written while it is put together."""

    def __init__(self) -> None:
        self.surfaces: tuple[Surface, ...] = ()
        self._asked: dict[tuple[str, str], tuple[Surface, Route]] = {}
        self._patterns: list[tuple[re.Pattern[str], Surface]] = []

    def add_to(self, router: web.UrlDispatcher, surfaces: Sequence[Surface]) -> None:
        """Gives `router` the routes of `surfaces`. Mutates both."""
        self.surfaces = (*self.surfaces, *surfaces)
        for surface in surfaces:
            for route in surface.routes:
                for path in route.paths:
                    self._add(router, surface, route, path)

    def _add(self, router: web.UrlDispatcher, surface: Surface, route: Route, path: str) -> None:
        if route.method == "GET":
            added = router.add_get(path, route.handler)  # HEAD too
        else:
            added = router.add_route(route.method, path, route.handler)
        assert added.resource is not None, "a route that was added has a resource"
        self._asked[route.method, added.resource.canonical] = surface, route
        info = added.resource.get_info()
        pattern = info.get("pattern") or re.compile(re.escape(info.get("path", path)))
        self._patterns.append((pattern, surface))

    def route_of(self, request: web.Request) -> Route | None:
        """The route that answers; None where there is none of that path and method."""
        found = self._found(request)
        return found[1] if found else None

    def error_body_of(self, request: web.Request) -> ErrorBody:
        """How errors look here: as on the route, else as on others of its path, else OpenAI's."""
        found = self._found(request)
        if found:
            return found[0].error_body
        path = request.rel_url.raw_path
        matching = (s.error_body for pattern, s in self._patterns if pattern.fullmatch(path))
        return next(matching, error_body)

    def _found(self, request: web.Request) -> tuple[Surface, Route] | None:
        resource = request.match_info.route.resource
        if resource is None:
            return None
        method = "GET" if request.method == "HEAD" else request.method
        return self._asked.get((method, resource.canonical))
