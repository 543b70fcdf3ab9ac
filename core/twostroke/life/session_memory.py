"""What sessions keep beside weights and cache, where their backends say so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from twostroke.backends.capabilities import SessionMemory, TellsSessionMemory
from twostroke.backends.protocol import Backend
from twostroke.backends.split import graph_parts
from twostroke.bundle.graph_weights import read_weights
from twostroke.types import Stroke

_NOTHING = SessionMemory()


def session_memory(backend: Backend) -> SessionMemory:
    """What a backend says of its sessions."""
    return backend.session_memory if isinstance(backend, TellsSessionMemory) else _NOTHING


def kept_bytes(graphs: Mapping[Stroke, Path], backends: Mapping[Stroke, Backend]) -> int:
    """Of the host's memory, whatever rows hold: code, and files that stay mapped, each byte once.

    Raises:
        BundleError: a file cannot be read.
    """
    parts = [
        (part, backend)
        for stroke, path in graphs.items()
        for part, backend in graph_parts(path, backends[stroke])
        if backend.device.kind == "cpu"
    ]
    code = {id(backend): session_memory(backend).code_bytes for _, backend in parts}
    mapped = {
        (path.parent, *tensor.place): tensor.num_bytes
        for path, backend in parts
        if session_memory(backend).maps_weights
        for tensor in read_weights(path)
    }
    return sum(code.values()) + sum(mapped.values())
