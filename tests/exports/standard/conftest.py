"""A graph of one fused operator beside its plain form, both run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from twostroke_export.passes.linears import constant
from twostroke_export.passes.standard.standardise import standardise
from twostroke_export.weights import WeightFile

MICROSOFT = "com.microsoft"
NUM_NEW = 5
Feeds = dict[str, np.ndarray]


class Fused:
    """A graph of one fused operator, its inputs and the arrays to feed them with."""

    def __init__(self, folder, is_single_token: bool = False) -> None:
        self.folder, self.feeds = folder, {}
        self.numbers = np.random.default_rng(0)
        self.weights = WeightFile(folder)
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": 23, MICROSOFT: 1}, name="one")
        num_new = 1 if is_single_token else NUM_NEW
        self.ids = self.input("input_ids", np.arange(2 * num_new).reshape(2, num_new) % 7)
        self.ids.shape = ir.Shape(["batch", 1 if is_single_token else "sequence"])

    def input(self, name: str, array: np.ndarray, *dims: int | str) -> ir.Value:
        shape = ir.Shape(dims or [f"{name}_{axis}" for axis in range(array.ndim)])
        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value = ir.Value(name=name, shape=shape, type=kind)
        self.graph.inputs.append(value)
        self.feeds[name] = array
        return value

    def random(self, *shape: int) -> np.ndarray:
        return self.numbers.standard_normal(shape).astype(np.float32)

    def stored(self, array: np.ndarray) -> ir.Value:
        return constant(self.graph, self.weights.add(array))

    def run(self, op_type: str, inputs: list, outputs: list[str], domain=MICROSOFT, **attributes):
        """The outputs of the fused operator and of its plain form, and the plain graph."""
        dtype = next(value.type for value in inputs if value is not None and value is not self.ids)
        if dtype.dtype == ir.DataType.UINT8:
            dtype = ir.TensorType(ir.DataType.FLOAT)
        node = ir.node(
            op_type, inputs, attributes=attributes, domain=domain, num_outputs=len(outputs)
        )
        self.graph.append(node)
        for value, name in zip(node.outputs, outputs, strict=True):
            value.name = name
            if name:
                value.type = dtype
                self.graph.outputs.append(value)
        if not self.ids.uses():  # an input that nothing reads is refused where it is fed
            unread = ir.node("Shape", [self.ids])
            unread.outputs[0].name, unread.outputs[0].type = (
                "size",
                ir.TensorType(ir.DataType.INT64),
            )
            self.graph.append(unread)
            self.graph.outputs.append(unread.outputs[0])
        model = ir.Model(self.graph, ir_version=10)
        theirs = self._run(model, "fused.onnx")
        standardise(model, self.weights)
        return theirs, self._run(model, "plain.onnx"), model

    def _run(self, model: ir.Model, name: str) -> Feeds:
        self.weights._file.flush()
        ir.save(model, self.folder / name)
        session = ort.InferenceSession(self.folder / name, providers=["CPUExecutionProvider"])
        wanted = {value.name for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs() if value.name != "size"]
        answers = session.run(names, {k: v for k, v in self.feeds.items() if k in wanted})
        return dict(zip(names, answers, strict=True))


@pytest.fixture
def fused(tmp_path) -> Callable[..., Fused]:
    made = []

    def make(**options) -> Fused:
        made.append(Fused(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.weights._file.close()
