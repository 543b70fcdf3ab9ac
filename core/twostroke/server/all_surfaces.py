"""The surfaces of an endpoint: those that come along, then those of plugins."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.server import page
from twostroke.server.surface import Surface, check_routes
from twostroke.server.surfaces import anthropic, llama_cpp, ollama, openai, plain

BUILT_IN = (
    plain.SURFACE,
    openai.SURFACE,
    anthropic.SURFACE,
    ollama.SURFACE,
    llama_cpp.SURFACE,
    page.SURFACE,
)


def all_surfaces(of_plugins: Mapping[str, Surface]) -> tuple[Surface, ...]:
    """All of them, in the order in which their routes are tried.

    Raises:
        PluginError: two bring one name, or the same route.
    """
    surfaces = (*BUILT_IN, *of_plugins.values())
    check_routes(surfaces)
    return surfaces
