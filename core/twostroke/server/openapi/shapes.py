"""The JSON schemas of bodies and answers, each shape once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import TypeAdapter

from twostroke.server.surface import Route

_TEMPLATE = "#/components/schemas/{model}"
_MODE: Literal["validation"] = "validation"  # a field with a default may be missing


class Shapes:
    """Schemas of the routes that it was made of. `components` holds the shapes they refer to."""

    def __init__(self, routes: Iterable[Route]) -> None:
        inputs: list[Any] = [
            ((id(route), what), _MODE, TypeAdapter(shape))
            for route in routes
            for what, shape in (("body", route.body), ("reply", route.reply))
            if shape is not None and not isinstance(shape, Mapping)
        ]
        self._schemas, found = TypeAdapter.json_schemas(inputs, ref_template=_TEMPLATE)
        self.components: dict[str, Any] = dict(found.get("$defs", {}))

    def body_of(self, route: Route) -> Mapping[str, Any]:
        """The schema of a route that has a body."""
        return self._schemas[(id(route), "body"), _MODE]

    def reply_of(self, route: Route) -> Mapping[str, Any]:
        """The schema of a route that has a reply."""
        if isinstance(route.reply, Mapping):
            return route.reply
        return self._schemas[(id(route), "reply"), _MODE]
