"""How many requests each route answered, and with what."""

from __future__ import annotations

from collections import Counter

from aiohttp import web

_CUT = "cut"  # a stream that broke off, or a client that went away before a status was sent


class HttpCounts:
    """Counts answers by route, method and status. Used in the event loop's thread only."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, str]] = Counter()

    def add(self, request: web.Request, status: int | None) -> None:
        """Counts one answer; `status` None is one that was cut off.

        Routes count by their pattern, so that made-up paths don't make new series.
        """
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        method = request.method if resource is not None else "any"
        self.answers[route, method, _CUT if status is None else str(status)] += 1
