"""Responses that are stored: shown, listed what they were given, forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from twostroke.errors import RequestError
from twostroke.server.keys import CALLER
from twostroke.server.replies import json_reply
from twostroke.server.surfaces.openai.responses.items import Item
from twostroke.server.surfaces.openai.responses.store import RESPONSES

_MAX_LISTED, _NUM_LISTED = 100, 20


async def show_response(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/responses/{id}`."""
    if request.query.get("stream", "false") != "false":
        raise RequestError(
            "A stored response is not streamed again; ask for it without stream.", param="stream"
        )
    stored = request.app[RESPONSES].find(request[CALLER].scope, request.match_info["id"])
    return json_reply(stored.body)


async def delete_response(request: web.Request) -> web.StreamResponse:
    """Answers `DELETE /v1/responses/{id}`."""
    response_id = request.match_info["id"]
    request.app[RESPONSES].delete(request[CALLER].scope, response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


async def list_input_items(request: web.Request) -> web.StreamResponse:
    """Answers `GET /v1/responses/{id}/input_items`: all that the response was given, in pages."""
    store, scope = request.app[RESPONSES], request[CALLER].scope
    stored = store.find(scope, request.match_info["id"])
    items = [*store.context(scope, stored.body["previous_response_id"]), *stored.given]
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError("order must be asc or desc.", param="order")
    limit = request.query.get("limit", str(_NUM_LISTED))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MAX_LISTED):
        raise RequestError(f"limit must be 1 to {_MAX_LISTED}.", param="limit")
    if order == "desc":
        items.reverse()
    items = _behind(items, request.query.get("after"))
    page = items[: int(limit)]
    return json_reply(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }
    )


def _behind(items: Sequence[Item], after: str | None) -> list[Item]:
    ids = [item["id"] for item in items]
    if after is None:
        return list(items)
    if after not in ids:
        raise RequestError(f"after names no item of this response: {after[:80]!r}.", param="after")
    return list(items[ids.index(after) + 1 :])
