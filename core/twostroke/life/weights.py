"""What a model's weights take on disk, in memory and in a decode step.

The layouts are those of `twostroke export` (a test compares them) and, in memory, of ONNX Runtime's
CPU kernels, which pack the weights of products anew:

    fp32, fp16, bf16    rows * columns * 4 or 2, packed to rows * columns * 4
    int8, block 32      rows * blocks * (32 + 4): values, a float32 scale a block
    int4, block 32      rows * blocks * (16 + 4) + rows * ceil(blocks / 2): and 4-bit zero points
    packed (MLAS)       values, scales, and a float32 sum of each block, for int8 activations

Embeddings are read row by row where they lie; a head tied to one is packed beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BLOCK_COLUMNS = 32
_MIN_SIDE = 32  # smaller matrices, routers among them, stay floats
_FLOAT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_IN_PLACE = ("vector", "rotary")
PRECISION_BITS = {
    "fp32": (None, None),
    "fp16": (None, None),
    "bf16": (None, None),
    "int8": (8, 8),
    "int4": (4, 8),
}
"""Of each precision the bits of the layers and of head and embedding; None: floats."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """`count` matrices [rows, columns] that are treated alike.

    `role` is "layer", "expert", "router", "head", "tied" (head and embedding in one), "embedding",
    "vector" (norms, learned positions) or "rotary" (tables of angles, which are no parameters);
    the last two are never quantised and never packed. Of experts a token reads `num_active` of
    `num_experts`, which `count` includes.
    """

    role: str
    rows: int
    columns: int
    count: int = 1
    num_experts: int = 1
    num_active: int = 1

    @property
    def num_parameters(self) -> int:
        """Elements of all of them."""
        return 0 if self.role == "rotary" else self.rows * self.columns * self.count


@dataclass(frozen=True, slots=True)
class Weights:
    """The sums over a model, in bytes and elements.

    stored: in the bundle; packed: of the products, as the kernels read them; in_place: read where
    they were stored; step: what a decode step of one sequence reads, experts apart;
    expert_step: of the experts it chooses; expert_packed: of all experts; multiplied: parameters
    that a token is multiplied with, experts it did not choose and the head left out; head: those
    of the head.
    """

    num_parameters: int = 0
    num_active: int = 0
    stored_bytes: int = 0
    packed_bytes: int = 0
    in_place_bytes: int = 0
    step_bytes: int = 0
    expert_step_bytes: float = 0.0
    expert_bytes: int = 0
    num_multiplied: int = 0
    num_head: int = 0

    @property
    def loaded_bytes(self) -> int:
        """In memory, where both strokes share what is packed."""
        return self.packed_bytes + self.in_place_bytes

    def read_bytes(self, num_rows: int) -> float:
        """What a decode step of `num_rows` sequences reads of the weights.

        Sequences choose experts as if at random, so of E experts with k chosen by each they touch
        E * (1 - (1 - k / E) ** rows) on average.
        """
        if not self.expert_bytes:
            return float(self.step_bytes)
        share = self.expert_step_bytes / self.expert_bytes
        return self.step_bytes + self.expert_bytes * (1.0 - (1.0 - share) ** num_rows)


def weigh(matrices: Iterable[Matrices], precision: str, *, packs: bool = True) -> Weights:
    """What matrices take in a precision; `packs`: on a processor that packs products anew."""
    layer_bits, head_bits = PRECISION_BITS[precision]
    float_bytes = _FLOAT_BYTES.get(precision, 4)
    total = Weights()
    for group in matrices:
        bits = head_bits if group.role in ("head", "tied", "embedding") else layer_bits
        is_small = min(group.rows, group.columns) < _MIN_SIDE
        if is_small or group.role in ("router", *_IN_PLACE):
            bits = None
        total = _plus(total, group, bits, float_bytes, packs)
    return total


def stored_bytes(rows: int, columns: int, bits: int | None, float_bytes: int) -> int:
    """Of one matrix in a bundle's weights file."""
    if bits is None:
        return rows * columns * float_bytes
    blocks = -(-columns // BLOCK_COLUMNS)
    zero_points = -(-blocks // 2) if bits == 4 else 0
    return rows * (blocks * (BLOCK_COLUMNS * bits // 8 + float_bytes) + zero_points)


MLAS_BLOCK_BYTES = 8
"""What ONNX Runtime's kernels keep of a block beside its values: scale and sum in float32."""


def packed_bytes(
    rows: int,
    columns: int,
    bits: int | None,
    block_columns: int,
    block_bytes: int = MLAS_BLOCK_BYTES,
) -> int:
    """Of one matrix as a product of the CPU reads it; half floats are widened."""
    if bits is None:
        return rows * columns * 4
    blocks = -(-columns // block_columns)
    return rows * blocks * (block_columns * bits // 8 + block_bytes)


def _plus(
    total: Weights, group: Matrices, bits: int | None, float_bytes: int, packs: bool
) -> Weights:
    stored = group.count * stored_bytes(group.rows, group.columns, bits, float_bytes)
    is_product = group.role not in ("embedding", *_IN_PLACE)
    packed = stored
    if packs and is_product and group.role != "expert":
        packed = group.count * packed_bytes(group.rows, group.columns, bits, BLOCK_COLUMNS)
    in_place = stored if group.role in ("embedding", "tied", *_IN_PLACE) and packs else 0
    is_expert, number = group.role == "expert", group.num_parameters
    active = number * group.num_active // group.num_experts
    return Weights(
        total.num_parameters + number,
        total.num_active + active,
        total.stored_bytes + stored,
        total.packed_bytes + (packed if is_product or not packs else 0),
        total.in_place_bytes + in_place,
        total.step_bytes + (packed if is_product and not is_expert else 0),
        total.expert_step_bytes
        + (packed * group.num_active / group.num_experts if is_expert else 0.0),
        total.expert_bytes + (packed if is_expert else 0),
        total.num_multiplied + (active if group.role in ("layer", "expert", "router") else 0),
        total.num_head + (number if group.role in ("head", "tied") else 0),
    )
