"""The passes of the fused dialect, in their order: before quantising, while packing, and after."""

from __future__ import annotations

import onnx_ir as ir

from twostroke_export.passes.attention_scale import fold_query_scale
from twostroke_export.passes.bias import fuse_bias
from twostroke_export.passes.pack_gate_up import pack_gate_up
from twostroke_export.passes.pack_qkv import pack_qkv
from twostroke_export.passes.packed_attention import feed_packed
from twostroke_export.passes.silu import fuse_silu
from twostroke_export.passes.skip_norm import fuse_skip_norm
from twostroke_export.passes.sort_heads import sort_heads
from twostroke_export.precision import Lowering


def fuse(graph: ir.Graph) -> None:
    """Fuses what leaves every matrix where it is. Mutates."""
    fuse_skip_norm(graph)
    fuse_silu(graph)
    fold_query_scale(graph)


def pack(graph: ir.Graph, lowering: Lowering) -> None:
    """Packs products that read one value, where one is faster than its parts. Mutates."""
    sort_heads(graph)
    feed_packed(graph)
    pack_qkv(graph)
    # In floats a prompt loses more to parting gate from up than either stroke gains.
    if lowering.head is not None:
        pack_gate_up(graph)


def finish(graph: ir.Graph) -> None:
    """Fuses what needed the products of the precision to be there. Mutates."""
    fuse_bias(graph)
