"""Bundles with real, tiny graphs for backends over ONNX Runtime: random weights, two layers.

The graphs keep to the contract of `twostroke.bundle.contract`. Rotary embeddings see to it that a
wrong row, length or order changes the logits; both dialects compute what
`twostroke.testing.tiny_model.tiny_logits` does. Needs neither `onnx` nor ONNX Runtime.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.backends.protocol import Array
from twostroke.bundle import onnx_wire, seal, sealing
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
from twostroke.testing.tiny_model import TinyModel, tiny_weights
from twostroke.types import Stroke

_WEIGHTS = "weights.bin"
_OPSET = 21


class TinyGraph:
    """Nodes and initializers of one graph on their way to a file.

    `weights`: all that the model reads, by name; None: random ones, see `tiny_weights`.
    """

    def __init__(
        self,
        model: TinyModel,
        stroke: Stroke,
        dialect: Dialect,
        file: onnx_wire.WeightsFile,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        self.model = model
        self.stroke = stroke
        self.is_fused = dialect == "fused"
        self.dtype = np.dtype(model.kv_dtype)
        self._file = file
        self._weights = tiny_weights(model) if weights is None else weights
        self._nodes: list[bytes] = []
        self._initializers: dict[str, bytes] = {}
        self._past: list[bytes] = []
        self._present: list[bytes] = []

    def add(
        self,
        op: str,
        inputs: list[str],
        *outputs: str,
        domain: str = "",
        **attributes: int | list[int],
    ) -> str:
        """Appends a node and answers its first output."""
        self._nodes.append(onnx_wire.node(op, inputs, outputs, domain, **attributes))
        return outputs[0]

    def constant(self, name: str, values: Any) -> str:
        """Appends an initializer, unless it is there already."""
        if name not in self._initializers:
            self._initializers[name] = onnx_wire.tensor(name, np.asarray(values), self._file)
        return name

    def weight(self, name: str) -> str:
        """A weight of the model."""
        return self.constant(name, self._weights[name])

    def linear(self, x: str, name: str) -> str:
        """`x` [batch, sequence, rows] times a weight: [batch, sequence, columns]."""
        return self.add("MatMul", [x, self.weight(f"{name}.weight")], name)

    def layer(self, number: int, x: str) -> str:
        """Attention and feed-forward with residuals, [batch, sequence, hidden] in and out."""
        m, name = self.model, f"layer.{number}"
        q = self.linear(x, f"{name}.q")
        k = self.linear(x, f"{name}.k")
        v = self.linear(x, f"{name}.v")
        past, present = past_names(number), present_names(number)
        lengths = ("capacity", "capacity") if self.is_fused else ("past", "total")
        for names, values, length in (
            (past, self._past, lengths[0]),
            (present, self._present, lengths[1]),
        ):
            shape: list[int | str] = ["batch", m.num_kv_heads, length, m.head_dim]
            values += [onnx_wire.value_info(side, self.dtype.name, shape) for side in names]
        attention = fused_attention if self.is_fused else standard_attention
        heads = (m.num_heads, m.num_kv_heads, m.head_dim)
        attended = attention(self, name, (q, k, v), past, present, heads)
        out = self.linear(attended, f"{name}.o")
        x = self.add("Add", [x, out], f"{name}.middle")
        up = self.linear(x, f"{name}.up")
        gate = self.add("Tanh", [up], f"{name}.tanh")
        down = self.linear(gate, f"{name}.down")
        return self.add("Add", [x, down], f"{name}.out")

    def serialised(self) -> bytes:
        """The whole graph as a ModelProto."""
        m, is_prefill = self.model, self.stroke is Stroke.PREFILL
        for table in ("rope.cos", "rope.sin"):
            self.weight(table)
        embedding = self.weight("embedding")
        x = self.add("Gather", [embedding, "input_ids"], "embedded")
        for number in range(m.num_layers):
            x = self.layer(number, x)
        if is_prefill:
            axis = self.constant("axis.2", np.array([2]))
            index = self.add("Unsqueeze", ["logit_index", axis], "index")  # [batch, k, 1]
            x = self.add("GatherND", [x, index], "wanted", batch_dims=1)  # [batch, k, hidden]
        head = self.linear(x, "head")
        if is_prefill and m.extra_prefill_weight:
            bias = self.constant("own", np.full(m.vocab_size, 0.0, self.dtype))
            head = self.add("Add", [head, bias], "biased")
        self.add("Cast", [head], "logits", to=onnx_wire.ELEMENT_TYPES["float32"])
        return self._model()

    def _model(self) -> bytes:
        info = onnx_wire.value_info
        inputs = [info("input_ids", "int64", ["batch", "sequence"])]
        if self.is_fused:
            inputs.append(info("seqlens_k", "int32", ["batch"]))
            inputs.append(info("total_sequence_length", "int32", []))
        else:
            inputs.append(info("position_ids", "int64", ["batch", "sequence"]))
        positions: str | int = 1
        if self.stroke is Stroke.PREFILL:
            positions = "k"
            inputs.append(info("logit_index", "int64", ["batch", positions]))
        logits = info("logits", "float32", ["batch", positions, self.model.vocab_size])
        return onnx_wire.model(
            str(self.stroke),
            self._nodes,
            [*inputs, *self._past],
            [logits, *self._present],
            list(self._initializers.values()),
            {"": _OPSET, "com.microsoft": 1} if self.is_fused else {"": _OPSET},
        )


def write_graphs(folder: Path, model: TinyModel, kind: type[TinyGraph] | None = None) -> None:
    """Writes the graphs of each dialect (`prefill.onnx` and so on) and the weights they read.

    `kind` is another kind of graphs, made with the first four arguments of TinyGraph.
    """
    for dialect, stroke in itertools.product(model.dialects, Stroke):
        # Each graph writes the same bytes at the same places, unless it has a tensor of its own.
        own = stroke is Stroke.PREFILL and model.extra_prefill_weight
        file = onnx_wire.WeightsFile(f"prefill.{_WEIGHTS}" if own else _WEIGHTS)
        graph = (kind or TinyGraph)(model, stroke, dialect, file).serialised()
        (folder / graph_file(stroke, dialect)).write_bytes(graph)
        (folder / file.name).write_bytes(file.content)


def _quantisation(model: TinyModel) -> Quantisation:
    """How the weights of the graphs are stored."""
    precision = "fp16" if model.kv_dtype == "float16" else "fp32"
    return Quantisation(precision=precision, activations=model.kv_dtype)


def make_onnx_bundle(
    folder: Path, model: TinyModel | None = None, kind: type[TinyGraph] | None = None
) -> Path:
    """Writes a sealed bundle with tiny graphs at `folder` (which must not exist).

    `kind`: see `write_graphs`.

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
        write_graphs(out, model, kind)
        byte_tokenizer().save(str(out / "tokenizer.json"))
        seal(out, manifest)
    return folder


__all__ = ["TinyGraph", "TinyModel", "make_onnx_bundle", "write_graphs"]
