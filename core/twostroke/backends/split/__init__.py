"""Two backends that share the layers of a model: for models larger than one device's memory.

Neither knows of the other. The engine sees one backend: its sessions run the first layers on one
device and the others on the next, and carry the hidden states across.
"""

from twostroke.backends.split.backend import (
    SplitBackend,
    graph_parts,
    layer_backend,
)

__all__ = ["SplitBackend", "graph_parts", "layer_backend"]
