"""The arrays of the KV cache, allocated once on a backend's device."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.backends.protocol import Backend, Buffer, Session
from twostroke.bundle.contract import past_names, present_names
from twostroke.bundle.manifest import Manifest
from twostroke.errors import ContractError


class KVBuffers:
    """Keys and values of all rows and layers, [rows, kv_heads, capacity, head_dim] each.

    Where the backend has no views of rows, each row is an allocation of its own,
    [1, kv_heads, capacity, head_dim]. `names` are the past inputs in the graph's layer order.
    """

    def __init__(
        self, backend: Backend, session: Session, manifest: Manifest, num_rows: int, capacity: int
    ) -> None:
        self.names = tuple(
            name for layer in range(len(manifest.kv_layers)) for name in past_names(layer)
        )
        self.has_row_views = backend.has_row_views
        self.num_rows = num_rows
        num_blocks, block_rows = (1, num_rows) if backend.has_row_views else (num_rows, 1)
        shapes = kv_shapes(session, manifest, block_rows, capacity)
        self._blocks = tuple(
            {
                name: backend.allocate(shapes[name], session.inputs[name].dtype)
                for name in self.names
            }
            for _ in range(num_blocks)
        )

    def span(self, start: int, count: int) -> Mapping[str, Buffer]:
        """The rows [start, start + count) of every layer and side, by past name.

        Without row views `count` must be 1.
        """
        if self.has_row_views:
            return {name: buffer.rows(start, count) for name, buffer in self._blocks[0].items()}
        assert count == 1
        return self._blocks[start]


def kv_shapes(
    session: Session, manifest: Manifest, num_rows: int, capacity: int
) -> dict[str, tuple[int, int, int, int]]:
    """The shape of each past input's buffer, by name.

    Raises:
        ContractError: the graph fixes a dimension to something else than the manifest says.
    """
    shapes: dict[str, tuple[int, int, int, int]] = {}
    for layer, geometry in enumerate(manifest.kv_layers):
        shape = (num_rows, geometry.num_kv_heads, capacity, geometry.head_dim)
        for name in past_names(layer):
            declared = session.inputs[name].shape
            fits = len(declared) == len(shape) and all(
                isinstance(want, str) or want in (have, -1)
                for want, have in zip(declared[1:], shape[1:], strict=True)
            )
            if not fits:
                raise ContractError(
                    f"The graph declares {name} as {list(declared)}, the engine would bind "
                    f"{list(shape)} as the manifest says. Export the model again."
                )
            shapes[name] = shape
    return shapes


def present_of(past: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """The present outputs bound to the very buffers of the past inputs."""
    renamed = {}
    for layer in range(len(past) // 2):
        for past_name, present_name in zip(past_names(layer), present_names(layer), strict=True):
            renamed[present_name] = past[past_name]
    return renamed
