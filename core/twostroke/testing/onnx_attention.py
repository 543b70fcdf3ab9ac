"""The attention of the tiny graphs, in both dialects; they compute the same.

A graph is given as the object that collects its nodes, with `add(op, inputs, *outputs,
**attributes)` and `constant(name, values)`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

LOWEST = -3e4  # stands for minus infinity; float16 holds it


class Nodes(Protocol):
    """Collects nodes and initializers."""

    dtype: np.dtype[Any]

    def add(self, op: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        """Appends a node and answers its first output."""
        ...

    def constant(self, name: str, values: Any) -> str:
        """Appends an initializer once, however often it is asked for, and answers its name."""
        ...


def fused_attention(
    nodes: Nodes,
    name: str,
    qkv: tuple[str, str, str],
    past: tuple[str, str],
    present: tuple[str, str],
    heads: tuple[int, int, int],
) -> str:
    """GroupQueryAttention with rotary inside: [batch, sequence, heads * head_dim].

    `heads` is (query heads, key and value heads, head_dim), here and below.
    """
    return nodes.add(
        "GroupQueryAttention",
        [*qkv, *past, "seqlens_k", "total_sequence_length", "rope.cos", "rope.sin"],
        f"{name}.attention",
        *present,
        domain="com.microsoft",
        num_heads=heads[0],
        kv_num_heads=heads[1],
        do_rotary=1,
    )


def standard_attention(
    nodes: Nodes,
    name: str,
    qkv: tuple[str, str, str],
    past: tuple[str, str],
    present: tuple[str, str],
    heads: tuple[int, int, int],
) -> str:
    """The same of plain operators (Vaswani et al. 2017), over past and present concatenated."""
    num_heads, num_kv_heads, head_dim = heads
    num_groups = num_heads // num_kv_heads
    q = _split(nodes, f"{name}.q", qkv[0], num_heads, head_dim)  # [batch, heads, sequence, dim]
    k = _split(nodes, f"{name}.k", qkv[1], num_kv_heads, head_dim)
    v = _split(nodes, f"{name}.v", qkv[2], num_kv_heads, head_dim)
    q, k = _rotate(nodes, f"{name}.q", q), _rotate(nodes, f"{name}.k", k)
    k = nodes.add("Concat", [past[0], k], present[0], axis=2)  # [batch, kv_heads, total, dim]
    v = nodes.add("Concat", [past[1], v], present[1], axis=2)
    grouped = nodes.constant(
        f"grouped.{num_groups}", np.array([0, num_kv_heads, num_groups, -1, head_dim])
    )
    q = nodes.add("Reshape", [q, grouped], f"{name}.q.grouped")  # [b, kv, groups, seq, dim]
    axis = nodes.constant("axis.2", np.array([2]))
    keys = nodes.add("Transpose", [k], f"{name}.keys.turned", perm=[0, 1, 3, 2])
    keys = nodes.add("Unsqueeze", [keys, axis], f"{name}.keys")  # [b, kv, 1, dim, total]
    values = nodes.add("Unsqueeze", [v, axis], f"{name}.values")  # [b, kv, 1, total, dim]
    scale = nodes.constant(f"scale.{head_dim}", np.array(head_dim**-0.5, nodes.dtype))
    scores = nodes.add("MatMul", [q, keys], f"{name}.products")  # [b, kv, groups, seq, total]
    scores = nodes.add("Mul", [scores, scale], f"{name}.scores")
    lowest = nodes.constant("lowest", np.array(LOWEST, nodes.dtype))
    scores = nodes.add("Where", [_mask(nodes, name, k), scores, lowest], f"{name}.masked")
    weights = nodes.add("Softmax", [scores], f"{name}.weights", axis=-1)
    mixed = nodes.add("MatMul", [weights, values], f"{name}.mixed")  # [b, kv, groups, seq, dim]
    flat = nodes.constant(f"flat.{num_heads}", np.array([0, num_heads, -1, head_dim]))
    mixed = nodes.add("Reshape", [mixed, flat], f"{name}.heads")  # [b, heads, seq, dim]
    mixed = nodes.add("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
    joined = nodes.constant(f"joined.{num_heads}", np.array([0, 0, num_heads * head_dim]))
    return nodes.add("Reshape", [mixed, joined], f"{name}.attention")


def _split(nodes: Nodes, name: str, x: str, num_heads: int, head_dim: int) -> str:
    """[batch, sequence, heads * dim] to [batch, heads, sequence, dim]."""
    shape = nodes.constant(f"split.{num_heads}", np.array([0, 0, num_heads, head_dim]))
    split = nodes.add("Reshape", [x, shape], f"{name}.split")
    return nodes.add("Transpose", [split], f"{name}.turned", perm=[0, 2, 1, 3])


def _rotate(nodes: Nodes, name: str, x: str) -> str:
    """Rotary embedding in halves (Su et al. 2021) of [batch, heads, sequence, dim]."""
    axis = nodes.constant("axis.1", np.array([1]))
    turns = []
    for table in ("cos", "sin"):
        rows = nodes.add("Gather", [f"rope.{table}", "position_ids"], f"{name}.{table}.rows")
        turns.append(nodes.add("Unsqueeze", [rows, axis], f"{name}.{table}"))  # [b, 1, seq, dim/2]
    cos, sin = turns
    first, second = f"{name}.first", f"{name}.second"
    nodes.add("Split", [x], first, second, axis=-1, num_outputs=2)
    ahead = [
        nodes.add("Mul", [half, turn], f"{name}.{number}")
        for number, (half, turn) in enumerate(
            ((first, cos), (second, sin), (second, cos), (first, sin))
        )
    ]
    left = nodes.add("Sub", ahead[:2], f"{name}.left")
    right = nodes.add("Add", ahead[2:], f"{name}.right")
    return nodes.add("Concat", [left, right], f"{name}.rotated", axis=-1)


def _mask(nodes: Nodes, name: str, keys: str) -> str:
    """Which keys a token sees, [batch, 1, 1, sequence, total]: those at or before its place."""
    length = nodes.add("Shape", [keys], f"{name}.total", start=2, end=3)
    zero, one = nodes.constant("zero", np.array(0)), nodes.constant("one", np.array(1))
    total = nodes.add("Squeeze", [length], f"{name}.total.number")
    places = nodes.add("Range", [zero, total, one], f"{name}.places")  # [total]
    axes = nodes.constant("axes.124", np.array([1, 2, 4]))
    own = nodes.add("Unsqueeze", ["position_ids", axes], f"{name}.own")  # [batch, 1, 1, seq, 1]
    return nodes.add("LessOrEqual", [places, own], f"{name}.mask")
