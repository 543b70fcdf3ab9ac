"""Which products are packed into one, at which precision."""

from __future__ import annotations

import onnx_ir as ir

from twostroke_export.passes.pack_gate_up import pack_gate_up
from twostroke_export.passes.pack_qkv import pack_qkv
from twostroke_export.precision import Lowering


def pack(graph: ir.Graph, lowering: Lowering) -> None:
    """Packs products that read one value, where one is faster than its parts. Mutates."""
    pack_qkv(graph)
    # In floats a prompt loses more to parting gate from up than either stroke gains.
    if lowering.head is not None:
        pack_gate_up(graph)
