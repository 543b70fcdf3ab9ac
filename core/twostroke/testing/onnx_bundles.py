"""Bundles with real, tiny graphs for backends over ONNX Runtime: random weights, two layers.

The graphs keep to the contract of `twostroke.bundle.contract`. Rotary embeddings see to it that a
wrong row, length or order changes the logits; both dialects compute the same. Needs the package
`onnx`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.bundle import seal, sealing
from twostroke.bundle.contract import past_names, present_names
from twostroke.bundle.manifest import (
    Architecture,
    Dialect,
    KVLayer,
    Manifest,
    Quantisation,
    Tokens,
    both_strokes,
    graph_file,
)
from twostroke.testing.bundles import byte_tokenizer
from twostroke.testing.onnx_attention import fused_attention, standard_attention
from twostroke.types import Stroke

_WEIGHTS = "weights.bin"
_EXTERNAL_FROM_BYTES = 256


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The shape of the graphs, of which each of `dialects` gets a pair.

    `extra_prefill_weight` gives prefill a tensor of its own.
    """

    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn_size: int = 128
    context_tokens: int = 256
    kv_dtype: str = "float32"
    seed: int = 0
    extra_prefill_weight: bool = False
    dialects: tuple[Dialect, ...] = ("fused",)

    @property
    def vocab_size(self) -> int:
        """As many as the byte tokenizer has."""
        return int(byte_tokenizer().get_vocab_size())


class _Graph:
    """Nodes and initializers of one graph on their way to a file."""

    def __init__(self, model: TinyModel, stroke: Stroke, dialect: Dialect) -> None:
        import onnx

        self.onnx: Any = onnx
        self.model = model
        self.stroke = stroke
        self.is_fused = dialect == "fused"
        self.random = np.random.default_rng(model.seed)
        self.dtype = np.dtype(model.kv_dtype)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._constants: set[str] = set()
        self._past: list[Any] = []
        self._present: list[Any] = []

    def add(self, op: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        """Appends a node and answers its first output."""
        self.nodes.append(self.onnx.helper.make_node(op, inputs, list(outputs), **attributes))
        return outputs[0]

    def constant(self, name: str, values: Any) -> str:
        """Appends an initializer, unless it is there already."""
        if name not in self._constants:
            self._constants.add(name)
            self.weights.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A random matrix, scaled so that activations keep their size."""
        values = self.random.standard_normal(shape) / np.sqrt(shape[0])
        return self.constant(name, values.astype(self.dtype))

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """`x` [batch, sequence, rows] times a weight: [batch, sequence, columns]."""
        return self.add("MatMul", [x, self.weight(f"{name}.weight", rows, columns)], name)

    def value(self, name: str, dtype: Any, shape: list[Any]) -> Any:
        """A graph input or output."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.onnx.helper.make_tensor_value_info(name, kind, shape)

    def layer(self, number: int, x: str) -> str:
        """Attention and feed-forward with residuals, [batch, sequence, hidden] in and out."""
        m, name = self.model, f"layer.{number}"
        q = self.linear(x, f"{name}.q", m.hidden_size, m.num_heads * m.head_dim)
        k = self.linear(x, f"{name}.k", m.hidden_size, m.num_kv_heads * m.head_dim)
        v = self.linear(x, f"{name}.v", m.hidden_size, m.num_kv_heads * m.head_dim)
        past, present = past_names(number), present_names(number)
        lengths = ("capacity", "capacity") if self.is_fused else ("past", "total")
        for names, values, length in (
            (past, self._past, lengths[0]),
            (present, self._present, lengths[1]),
        ):
            shape = ["batch", m.num_kv_heads, length, m.head_dim]
            values += [self.value(side, self.dtype, shape) for side in names]
        attention = fused_attention if self.is_fused else standard_attention
        heads = (m.num_heads, m.num_kv_heads, m.head_dim)
        attended = attention(self, name, (q, k, v), past, present, heads)
        out = self.linear(attended, f"{name}.o", m.num_heads * m.head_dim, m.hidden_size)
        x = self.add("Add", [x, out], f"{name}.middle")
        up = self.linear(x, f"{name}.up", m.hidden_size, m.ffn_size)
        gate = self.add("Tanh", [up], f"{name}.tanh")
        down = self.linear(gate, f"{name}.down", m.ffn_size, m.hidden_size)
        return self.add("Add", [x, down], f"{name}.out")

    def rope(self) -> None:
        """The rotary caches, [context + 16, head_dim / 2], as in RoFormer (Su et al. 2021)."""
        half = self.model.head_dim // 2
        rates = 10000.0 ** (-np.arange(half) / half)
        angles = np.arange(self.model.context_tokens + 16)[:, None] * rates
        self.constant("rope.cos", np.cos(angles).astype(self.dtype))
        self.constant("rope.sin", np.sin(angles).astype(self.dtype))

    def proto(self) -> Any:
        """The whole graph as a ModelProto."""
        m, is_prefill = self.model, self.stroke is Stroke.PREFILL
        self.rope()
        embedding = self.weight("embedding", m.vocab_size, m.hidden_size)
        x = self.add("Gather", [embedding, "input_ids"], "embedded")
        for number in range(m.num_layers):
            x = self.layer(number, x)
        if is_prefill:
            axis = self.constant("axis.2", np.array([2]))
            index = self.add("Unsqueeze", ["logit_index", axis], "index")  # [batch, k, 1]
            x = self.add("GatherND", [x, index], "wanted", batch_dims=1)  # [batch, k, hidden]
        head = self.linear(x, "head", m.hidden_size, m.vocab_size)
        if is_prefill and m.extra_prefill_weight:
            bias = self.constant("own", np.full(m.vocab_size, 0.0, self.dtype))
            head = self.add("Add", [head, bias], "biased")
        self.add("Cast", [head], "logits", to=int(self.onnx.TensorProto.FLOAT))
        return self._model()

    def _model(self) -> Any:
        inputs = [self.value("input_ids", "int64", ["batch", "sequence"])]
        if self.is_fused:
            inputs.append(self.value("seqlens_k", "int32", ["batch"]))
            inputs.append(self.value("total_sequence_length", "int32", []))
        else:
            inputs.append(self.value("position_ids", "int64", ["batch", "sequence"]))
        positions: str | int = 1
        if self.stroke is Stroke.PREFILL:
            positions = "k"
            inputs.append(self.value("logit_index", "int64", ["batch", positions]))
        logits = self.value("logits", "float32", ["batch", positions, self.model.vocab_size])
        helper = self.onnx.helper
        graph = helper.make_graph(
            self.nodes,
            str(self.stroke),
            [*inputs, *self._past],
            [logits, *self._present],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 21)]
        opsets += [helper.make_opsetid("com.microsoft", 1)] if self.is_fused else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write_graphs(folder: Path, model: TinyModel) -> None:
    """Writes the graphs of each dialect (`prefill.onnx` and so on) and the weights they read."""
    for dialect, stroke in itertools.product(model.dialects, Stroke):
        graph = _Graph(model, stroke, dialect)
        proto = graph.proto()
        # Each graph writes the same bytes at the same places, unless it has a tensor of its own.
        own = stroke is Stroke.PREFILL and model.extra_prefill_weight
        location = f"prefill.{_WEIGHTS}" if own else _WEIGHTS
        (folder / location).unlink(missing_ok=True)
        graph.onnx.save_model(
            proto,
            str(folder / graph_file(stroke, dialect)),
            save_as_external_data=True,
            location=location,
            size_threshold=_EXTERNAL_FROM_BYTES,
        )
        (folder / location).chmod(0o644)


def _quantisation(model: TinyModel) -> Quantisation:
    """How the weights of the graphs are stored."""
    precision = "fp16" if model.kv_dtype == "float16" else "fp32"
    return Quantisation(precision=precision, activations=model.kv_dtype)


def make_onnx_bundle(folder: Path, model: TinyModel | None = None) -> Path:
    """Writes a sealed bundle with tiny graphs at `folder` (which must not exist).

    Raises:
        BundleError: `folder` exists.
    """
    model = model or TinyModel()
    layer = KVLayer(num_kv_heads=model.num_kv_heads, head_dim=model.head_dim)
    manifest = Manifest(
        name="tiny",
        architecture=Architecture(
            model_type="tiny",
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            num_heads=model.num_heads,
            vocab_size=model.vocab_size,
            num_parameters=0,
        ),
        context_tokens=model.context_tokens,
        kv_layers=(layer,) * model.num_layers,
        graphs=tuple(
            fact
            for dialect in model.dialects
            for fact in both_strokes(_quantisation(model), dialect=dialect, kv_dtype=model.kv_dtype)
        ),
        tokens=Tokens(eos_ids=(2,)),
    )
    with sealing(folder) as out:
        write_graphs(out, model)
        byte_tokenizer().save(str(out / "tokenizer.json"))
        seal(out, manifest)
    return folder
