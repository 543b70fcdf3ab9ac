"""Responses that clients may come back to, in memory and within a bound.

A response is kept with its own input only; a conversation is the chain of those that each one names
as its previous. What was used last goes last, and a response before those that it follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from twostroke.config.schema import ServerConfig
from twostroke.errors import RequestError
from twostroke.server.surfaces.openai.responses.items import Item


@dataclass(frozen=True, slots=True)
class Stored:
    """A response that has ended, and the items that it was given beside its previous response's."""

    body: dict[str, Any]
    given: tuple[Item, ...]
    size_bytes: int

    @property
    def items(self) -> tuple[Item, ...]:
        """What it adds to a conversation."""
        return (*self.given, *self.body["output"])


class ResponseStore:
    """Holds responses of all keys, each for its own (`scope`). Used in the event loop's thread."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` 0 keeps nothing."""
        self.max_bytes = max_bytes
        self._num_bytes = 0
        self._stored: OrderedDict[tuple[str, str], Stored] = OrderedDict()
        self._items: dict[tuple[str, str], Item] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, scope: str, stored: Stored) -> None:
        """Keeps a response, and lets others go for it; one larger than the store is not kept."""
        if stored.size_bytes > self.max_bytes:
            return
        self._stored[scope, stored.body["id"]] = stored
        self._num_bytes += stored.size_bytes
        self._items.update({(scope, item["id"]): item for item in stored.items})
        while self._num_bytes > self.max_bytes:
            self._drop(next(iter(self._stored)))

    def find(self, scope: str, response_id: str) -> Stored:
        """A response by its id.

        Raises:
            RequestError: 404, there is none.
        """
        stored = self._stored.get((scope, response_id))
        if stored is None:
            raise RequestError(
                f"No response {response_id[:80]!r} is stored here; they are kept in memory, as far "
                "as server.stored_responses goes.",
                param="response_id",
                code="response_not_found",
                status=404,
            )
        return stored

    def find_item(self, scope: str, item_id: str) -> Item | None:
        """An item of any response, by its id."""
        return self._items.get((scope, item_id))

    def context(self, scope: str, response_id: str | None) -> list[Item]:
        """All items of a conversation up to a response and with it; none for None.

        Raises:
            RequestError: the response, or one before it, is not stored.
        """
        chain: list[str] = []
        found: list[Sequence[Item]] = []
        while response_id is not None:
            stored = self._stored.get((scope, response_id))
            if stored is None:
                raise _not_found(response_id, chain)
            chain.append(response_id)
            found.append(stored.items)
            response_id = stored.body["previous_response_id"]
        for each in chain:  # the first of the conversation is the last to go
            self._stored.move_to_end((scope, each))
        return [item for items in reversed(found) for item in items]

    def delete(self, scope: str, response_id: str) -> None:
        """Forgets a response.

        Raises:
            RequestError: 404, there is none.
        """
        self.find(scope, response_id)
        self._drop((scope, response_id))

    def _drop(self, key: tuple[str, str]) -> None:
        stored = self._stored.pop(key)
        self._num_bytes -= stored.size_bytes
        for item in stored.items:
            self._items.pop((key[0], item["id"]), None)


RESPONSES = web.AppKey("responses", ResponseStore)


def set_up_store(app: web.Application, config: ServerConfig) -> None:
    """Gives an application its store."""
    app[RESPONSES] = ResponseStore(config.stored_responses)


def _not_found(response_id: str, chain: Sequence[str]) -> RequestError:
    before = f", which {chain[0]!r} goes back to," if chain else ""
    return RequestError(
        f"The previous response {response_id[:80]!r}{before} is not stored here; send the whole "
        "conversation as input.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
