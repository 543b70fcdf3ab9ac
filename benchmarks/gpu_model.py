"""A bundle to measure with: the shape of a model, weights without meaning, written in seconds.

Nothing is traced and no checkpoint is needed. Each tensor has bytes of its own in the file, since
a GPU's cache would hide that equal ones are read from one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.bundle.onnx_wire import WeightsFile
from twostroke.testing.onnx_bundles import TinyGraph, TinyModel, make_onnx_bundle
from twostroke.testing.tiny_model import tiny_weights
from twostroke.types import Stroke

BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True)
class SyntheticModel(TinyModel):
    """As TinyModel, with a vocabulary of any size; 1.2 billion parameters by default."""

    num_layers: int = 16
    hidden_size: int = 3072
    num_heads: int = 24
    num_kv_heads: int = 8
    head_dim: int = 128
    ffn_size: int = 8192
    context_tokens: int = 2304
    kv_dtype: str = "float16"
    num_ids: int = 32768

    @property
    def vocab_size(self) -> int:
        """The tokenizer knows fewer; nobody writes text with this model."""
        return self.num_ids


class _Weights(Mapping[str, Any]):
    """The tensors of a model, made when they are asked for: one random block, over and over."""

    def __init__(self, model: SyntheticModel) -> None:
        small = TinyModel(
            num_layers=0,
            hidden_size=1,
            head_dim=model.head_dim,
            kv_dtype=model.kv_dtype,
            context_tokens=model.context_tokens,
        )
        self._tables = {n: v for n, v in tiny_weights(small).items() if n.startswith("rope.")}
        self._shapes = _shapes(model)
        self._dtype = model.kv_dtype
        self._block = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)

    def __getitem__(self, name: str) -> Any:
        if name in self._tables:
            return self._tables[name]
        rows, columns = self._shapes[name]
        scaled = (self._block / np.sqrt(np.float32(rows))).astype(self._dtype)
        return np.resize(scaled, (rows, columns))

    def __iter__(self) -> Iterator[str]:
        return iter((*self._tables, *self._shapes))

    def __len__(self) -> int:
        return len(self._tables) + len(self._shapes)


def _shapes(model: SyntheticModel) -> dict[str, tuple[int, int]]:
    hidden, kv_size = model.hidden_size, model.num_kv_heads * model.head_dim
    q_size = model.num_heads * model.head_dim
    sides = {"q": (hidden, q_size), "k": (hidden, kv_size), "v": (hidden, kv_size)}
    sides |= {"o": (q_size, hidden), "up": (hidden, model.ffn_size)}
    sides["down"] = (model.ffn_size, hidden)
    shapes = {
        f"layer.{number}.{name}.weight": shape
        for number in range(model.num_layers)
        for name, shape in sides.items()
    }
    vocab_size = model.vocab_size
    return {**shapes, "embedding": (vocab_size, hidden), "head.weight": (hidden, vocab_size)}


class FloatGraph(TinyGraph):
    """Products of halves."""

    def __init__(
        self, model: SyntheticModel, stroke: Stroke, dialect: Any, file: WeightsFile
    ) -> None:
        super().__init__(model, stroke, dialect, file, _Weights(model))
        self._shapes = _shapes(model)


class Int4Graph(FloatGraph):
    """Products with 4-bit weights in blocks of 32 (MatMulNBits); head and embedding are halves."""

    def linear(self, x: str, name: str) -> str:
        """`x` [batch, sequence, rows] times a weight of 4 bits: [batch, sequence, columns]."""
        if name == "head":
            return super().linear(x, name)
        rows, columns = self._shapes[f"{name}.weight"]
        num_blocks = -(-rows // BLOCK_SIZE)
        random = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
        packed = np.resize(random, (columns, num_blocks, BLOCK_SIZE // 2))
        scales = np.full((columns * num_blocks,), 0.2 / np.sqrt(rows), self.dtype)
        weights = [
            self.constant(f"{name}.weight.packed", packed),
            self.constant(f"{name}.weight.scales", scales),
        ]
        return self.add(
            "MatMulNBits",
            [x, *weights],
            name,
            domain="com.microsoft",
            K=rows,
            N=columns,
            bits=4,
            block_size=BLOCK_SIZE,
        )


def write_model(folder: Path, precision: str, model: SyntheticModel | None = None) -> Path:
    """Writes a bundle in "fp16" or "int4" at `folder`, which must not exist.

    Raises:
        BundleError: it exists.
    """
    kind = {"fp16": FloatGraph, "int4": Int4Graph}[precision]
    return make_onnx_bundle(folder, model or SyntheticModel(), kind)
