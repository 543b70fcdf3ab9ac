"""Which of a bundle's graphs each stroke runs: the YAML's word, else what its backend wants."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from twostroke.backends.choose import preferred_dialect
from twostroke.backends.discovery import Plugins
from twostroke.bundle import Bundle
from twostroke.config.schema import ModelConfig
from twostroke.errors import BundleError, PlacementError
from twostroke.model.reader import choose_reader
from twostroke.types import Stroke

log = logging.getLogger(__name__)

_FUSED, _STANDARD = "fused", "standard"


def asked_dialect(model: ModelConfig, stroke: Stroke) -> str | None:
    """What the YAML says for a stroke; None where it leaves it to the backend."""
    return (model.prefill if stroke is Stroke.PREFILL else model.decode).dialect


def backend_name(model: ModelConfig, stroke: Stroke) -> str:
    """The backend that the YAML names for a stroke, or `auto`."""
    return (model.prefill if stroke is Stroke.PREFILL else model.decode).backend or model.backend


def exported_dialects(model: ModelConfig, plugins: Plugins) -> tuple[str, ...]:
    """The dialects that an export for this model must hold, `fused` first."""
    reader = choose_reader(model, plugins, None).name
    names = {stroke: backend_name(model, stroke) for stroke in Stroke}
    names |= {} if reader is None else {Stroke.PREFILL: reader}
    wanted = {
        asked_dialect(model, stroke) or preferred_dialect(plugins, names[stroke], stroke)
        for stroke in Stroke
    }
    return tuple(sorted(wanted))


def prefill_dialects(bundle: Bundle) -> frozenset[str]:
    """The dialects in which a bundle holds a prefill graph."""
    graphs = bundle.manifest.graphs
    return frozenset(graph.dialect for graph in graphs if graph.stroke is Stroke.PREFILL)


def choose_dialect(
    bundle: Bundle, stroke: Stroke, asked: str | None, backend: str, wanted: Mapping[Stroke, str]
) -> str:
    """The dialect of the graph that a stroke runs on `backend`, whose spec has `wanted`.

    Plain operators run wherever fused ones do, only slower, so a bundle that holds nothing else is
    served, and a warning says what it costs. The reverse is not tried: a backend that wants plain
    operators would leave the fused ones to another processor.

    Raises:
        BundleError: the bundle lacks what the YAML asks for; says what it has and how to get it.
        PlacementError: it lacks what the backend wants, so that another one may take over.
    """
    dialect = asked or wanted[stroke]
    held = [graph.dialect for graph in bundle.manifest.graphs if graph.stroke is stroke]
    if dialect in held:
        return dialect
    if asked is None and dialect == _FUSED and _STANDARD in held:
        if bundle.origin is None:
            log.warning(
                "%s has no fused %s graph, which %s would run faster: its standard one is taken. "
                "Export the model again with --dialect both to have it",
                bundle.root,
                stroke,
                backend,
            )
        return _STANDARD
    has = f"{bundle.root} holds only a {' and a '.join(held)} {stroke} graph"
    made = "Export the model again" if bundle.origin is None else "Export its source"
    cure = f"{made} with `twostroke export --dialect {dialect}`, or with --dialect both."
    if asked is not None:
        raise BundleError(f"{has}, and {stroke}.dialect asks for a {asked} one. {cure}")
    raise PlacementError(
        f"{has}, and the backend {backend!r} wants a {dialect} one. {cure}", backend=backend
    )
