"""Backends: the hooks, the protocol, discovery and the proof of placement."""

from twostroke.backends.capabilities import CHOSEN_BY_OPTIONS, HOST_MEMORY
from twostroke.backends.hookspecs import (
    ExporterSpec,
    ExportOptions,
    Progress,
    hookimpl,
    hookspec,
)
from twostroke.backends.protocol import (
    API_VERSION,
    Backend,
    BackendSpec,
    Binding,
    Buffer,
    Device,
    Placement,
    ProbeResult,
    Session,
    TensorSpec,
)

__all__ = [
    "API_VERSION",
    "CHOSEN_BY_OPTIONS",
    "HOST_MEMORY",
    "Backend",
    "BackendSpec",
    "Binding",
    "Buffer",
    "Device",
    "ExportOptions",
    "ExporterSpec",
    "Placement",
    "ProbeResult",
    "Progress",
    "Session",
    "TensorSpec",
    "hookimpl",
    "hookspec",
]
