"""What the weights of a bundle's graphs take, from what the graphs declare."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from twostroke.bundle import Bundle
from twostroke.bundle.graph_weights import Reader, StoredTensor, read_weights
from twostroke.life.weights import MLAS_BLOCK_BYTES, Weights, packed_bytes

_TEXT_SUFFIXES = (".json", ".jinja", ".txt", ".md", ".model")
_BLOCK_PRODUCT = "MatMulNBits"
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Gemm"})
_EXPERTS = frozenset({"MoE", "QMoE"})
_LOOK_UPS = frozenset(  # read a few rows of a table
    {"Gather", "GatherBlockQuantized", "GroupQueryAttention", "RotaryEmbedding"}
)


def weigh_graph(path: Path, *, vocab_size: int, packs: bool = True) -> Weights:
    """What a session of one graph reads; `packs`: on a processor that packs products anew.

    Raises:
        BundleError: the file cannot be read.
    """
    return _sum([_weigh(tensor, vocab_size, packs) for tensor in read_weights(path)])


def loaded_bytes(
    paths: Iterable[Path],
    *,
    vocab_size: int,
    packs: bool,
    shares: bool,
    block_bytes: int = MLAS_BLOCK_BYTES,
) -> tuple[int, ...]:
    """Bytes that each graph's session adds to memory, in order.

    `packs`: products are packed anew, by each session for itself unless it `shares` them. What is
    read where it was stored is mapped from the bundle and counts once. Without `packs` each session
    loads a copy of all that it reads, unless they share it. `block_bytes`: of a block of packed
    weights beside its values.

    Raises:
        BundleError: a file cannot be read.
    """
    packed: set[tuple[str, ...]] = set()
    mapped: set[tuple[str, ...]] = set()
    added = []
    for path in paths:
        total = 0
        for tensor in read_weights(path):
            weights = _weigh(tensor, vocab_size, packs, block_bytes)
            place = (str(path.parent), *tensor.place)
            if weights.packed_bytes and not (shares and place in packed):
                total += weights.packed_bytes
                packed.add(place)
            if weights.in_place_bytes and not ((packs or shares) and place in mapped):
                total += weights.in_place_bytes
                mapped.add(place)
        added.append(total)
    return tuple(added)


def mapped_table_bytes(paths: Iterable[Path]) -> int:
    """Bytes of the tables that graphs look single rows up in, such as embeddings; each once.

    Where they are mapped from the bundle, pages of rows that no token asked for take no memory.

    Raises:
        BundleError: a file cannot be read.
    """
    tables = {
        (str(path.parent), *tensor.place): tensor.num_bytes
        for path in paths
        for tensor in read_weights(path)
        if tensor.readers and all(r.operator in _LOOK_UPS and r.index == 0 for r in tensor.readers)
    }
    return sum(tables.values())


def stored_weights_bytes(bundle: Bundle) -> int:
    """Bytes of a bundle's graphs and weights on disk."""
    return sum(
        fact.num_bytes
        for name, fact in bundle.manifest.files.items()
        if not name.endswith(_TEXT_SUFFIXES)
    )


def table_bytes(paths: Iterable[Path], vocab_size: int) -> int:
    """Bytes of the embedding and the head, of each graph for itself.

    Raises:
        BundleError: a file cannot be read.
    """
    return sum(
        tensor.num_bytes
        for path in paths
        for tensor in read_weights(path)
        if vocab_size in tensor.dims
    )


def widest_products(path: Path, vocab_size: int) -> tuple[int, ...]:
    """Columns of the two widest values that products of a layer make, the head's left out.

    Raises:
        BundleError: the file cannot be read.
    """
    widths = {0}
    for tensor in read_weights(path):
        for reader in tensor.readers:
            size = _product_size(tensor, reader)
            if size is not None and size[0] != vocab_size:
                widths.add(size[0])
            elif reader.operator in _EXPERTS and reader.index == 2 and len(tensor.dims) == 3:
                widths.add(reader.numbers.get("k", 1) * tensor.dims[1])
    return tuple(sorted(widths, reverse=True)[:2])


def _weigh(
    tensor: StoredTensor, vocab_size: int, packs: bool, block_bytes: int = MLAS_BLOCK_BYTES
) -> Weights:
    """One tensor's part; scales and zero points go with the values of their product."""
    products = [r for r in tensor.readers if _product_size(tensor, r) is not None]
    experts = [r for r in tensor.readers if r.operator in _EXPERTS]
    others = len(tensor.readers) > len(products) + len(experts) + sum(
        map(_is_block_part, tensor.readers)
    )
    weights = Weights(stored_bytes=tensor.num_bytes)
    if products:
        size = _product_size(tensor, products[0])
        assert size is not None  # by which it was chosen
        packed = _packed(products[0], size, block_bytes) if packs else tensor.num_bytes
        weights = _product(weights, size, vocab_size, packed)
    elif experts and len(tensor.dims) >= 3:
        weights = _experts(weights, tensor, experts[0])
    elif any(map(_is_block_part, tensor.readers)) and not packs:
        weights = replace(weights, packed_bytes=tensor.num_bytes, step_bytes=tensor.num_bytes)
    if others or (experts and not weights.expert_bytes):
        is_table = all(r.operator in _LOOK_UPS for r in tensor.readers if not _is_block_part(r))
        is_loaded = packs or not weights.packed_bytes
        weights = replace(
            weights,
            in_place_bytes=tensor.num_bytes if is_loaded else 0,
            step_bytes=weights.step_bytes + (0 if is_table or products else tensor.num_bytes),
        )
    return weights


def _packed(reader: Reader, size: tuple[int, int], block_bytes: int) -> int:
    """Bytes of the values of a product in the layout that its kernel reads."""
    bits = reader.numbers.get("bits", 4) if reader.operator == _BLOCK_PRODUCT else None
    return packed_bytes(*size, bits, reader.numbers.get("block_size", 32), block_bytes)


def _product(weights: Weights, size: tuple[int, int], vocab_size: int, packed: int) -> Weights:
    rows, columns = size
    is_head = rows == vocab_size
    return replace(
        weights,
        num_parameters=rows * columns,
        num_active=rows * columns,
        packed_bytes=packed,
        step_bytes=packed,
        num_multiplied=0 if is_head else rows * columns,
        num_head=rows * columns if is_head else 0,
    )


def _experts(weights: Weights, tensor: StoredTensor, reader: Reader) -> Weights:
    num_experts, chosen = tensor.dims[0], reader.numbers.get("k", 1)
    per_byte = 8 // reader.numbers.get("expert_weight_bits", 4) if reader.operator == "QMoE" else 1
    is_matrix = reader.index in (2, 4, 5) if reader.operator == "MoE" else reader.index in (2, 5, 8)
    number = math.prod(tensor.dims) * per_byte if is_matrix else 0
    return replace(
        weights,
        num_parameters=number,
        num_active=number * chosen // num_experts,
        packed_bytes=tensor.num_bytes,
        expert_bytes=tensor.num_bytes,
        expert_step_bytes=tensor.num_bytes * chosen / num_experts,
        num_multiplied=number * chosen // num_experts,
    )


def _product_size(tensor: StoredTensor, reader: Reader) -> tuple[int, int] | None:
    """Outputs and inputs of the product that reads a tensor as its matrix; None: it is none."""
    if reader.operator == _BLOCK_PRODUCT and reader.index == 1:
        return reader.numbers.get("N", 0), reader.numbers.get("K", 0)
    if reader.operator in _PRODUCTS and reader.index == 1 and len(tensor.dims) == 2:
        rows, columns = tensor.dims
        return (rows, columns) if reader.numbers.get("transB") else (columns, rows)
    return None


def _is_block_part(reader: Reader) -> bool:
    """Whether a tensor is scales or zero points of a block-quantised product."""
    return reader.operator == _BLOCK_PRODUCT and reader.index > 1


def _sum(parts: Sequence[Weights]) -> Weights:
    names = Weights.__dataclass_fields__
    return Weights(**{name: sum(getattr(part, name) for part in parts) for name in names})
