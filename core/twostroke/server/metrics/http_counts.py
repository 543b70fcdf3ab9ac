"""How many requests each route answered, and with what."""

from __future__ import annotations

from collections import Counter

from aiohttp import web

from twostroke.server.keys import CALLER, TURN

_CUT = "cut"  # a stream that broke off, or a client that went away before a status was sent


class HttpCounts:
    """Counts answers by route, method and status, and what each key was given by the key's name.

    Used in the event loop's thread only.
    """

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, str, str]] = Counter()
        self.key_requests: Counter[tuple[str, str]] = Counter()  # key, status
        self.key_tokens: Counter[tuple[str, str]] = Counter()  # key, prompt or completion

    def add(self, request: web.Request, status: int | None) -> None:
        """Counts one answer; `status` None is one that was cut off.

        Routes count by their pattern, so that made-up paths don't make new series.
        """
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        method = request.method if resource is not None else "any"
        shown = _CUT if status is None else str(status)
        self.answers[route, method, shown] += 1
        caller = request.get(CALLER)
        if caller is not None and caller.name:
            self.key_requests[caller.name, shown] += 1
            turn = request.get(TURN)
            if turn is not None:
                self.key_tokens[caller.name, "prompt"] += turn.num_prompt_tokens
                self.key_tokens[caller.name, "completion"] += turn.num_made_tokens
