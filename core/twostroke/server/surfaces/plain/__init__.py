"""The plain surface: `POST /generate`, the simplest of all."""

from __future__ import annotations

from twostroke.server.surface import Route, Surface
from twostroke.server.surfaces.plain.generate import NDJSON, GenerateBody, generate

SURFACE = Surface(
    name="plain",
    api_version=1,
    summary="text as it is made: `curl -N` on it types like a person",
    routes=(
        Route(
            "POST",
            "/generate",
            generate,
            "The text that follows a prompt or a conversation.",
            body=GenerateBody,
            streams=NDJSON,
        ),
    ),
)
