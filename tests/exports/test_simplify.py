"""Views that cancel go, and nothing that moves a number does."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from twostroke_export.passes.simplify import (
    drop_unused_position_ids,
    name_free_dimensions,
    remove_cancelling_views,
)

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def value(name: str, *dims: int | str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(dims), type=FLOAT)


def constant(name: str, *numbers: int) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(np.array(numbers), name=name))


def view(op: str, source: ir.Value, dims: tuple, *extra: ir.Value, **attributes) -> ir.Value:
    node = ir.node(op, [source, *extra], attributes=attributes)
    output = node.outputs[0]
    output.shape, output.type, output.name = ir.Shape(dims), FLOAT, f"{op}_{id(node)}"
    return output


def ops_left(source: ir.Value, last: ir.Value) -> list[str]:
    """The operators that stay between `source` and an Exp of `last`."""
    nodes, result = [], ir.node("Exp", [last])
    node = result
    while node is not None:
        nodes.insert(0, node)
        node = node.inputs[0].producer()
    constants = [i for n in nodes for i in n.inputs[1:] if i is not None]
    graph = ir.Graph(
        [source], [result.outputs[0]], nodes=nodes, initializers=constants, opset_imports={"": 23}
    )
    remove_cancelling_views(graph)
    return [node.op_type for node in graph]


def test_a_reshape_that_changes_nothing():
    x = value("x", "batch", "sequence", 8)
    assert ops_left(x, view("Reshape", x, ("batch", "sequence", 8), constant("s", -1, 1, 8))) == [
        "Exp"
    ]


def test_a_reshape_and_its_way_back():
    x = value("x", "batch", 1, 8)
    heads = view("Reshape", x, ("batch", 1, 2, 4), constant("a", -1, 1, 2, 4))
    assert ops_left(x, view("Reshape", heads, ("batch", 1, 8), constant("b", -1, 1, 8))) == ["Exp"]


def test_a_reshape_to_something_else_stays():
    x = value("x", "batch", 1, 8)
    assert ops_left(x, view("Reshape", x, ("batch", 8), constant("s", -1, 8))) == ["Reshape", "Exp"]


def test_unknown_sizes_are_not_taken_for_equal():
    x = value("x", None, None, 8)
    assert ops_left(x, view("Reshape", x, (None, None, 8), constant("s", -1, 1, 8))) == [
        "Reshape",
        "Exp",
    ]


@pytest.mark.parametrize(("second", "left"), [((0, 2, 1, 3), ["Exp"]), ((0, 1, 3, 2), None)])
def test_transposes_that_undo_one_another(second, left):
    x = value("x", 2, 3, 4, 5)
    once = view("Transpose", x, (2, 4, 3, 5), perm=(0, 2, 1, 3))
    twice = view("Transpose", once, (2, 3, 4, 5), perm=second)
    assert ops_left(x, twice) == (left or ["Transpose", "Transpose", "Exp"])


@pytest.mark.parametrize(("step", "left"), [(1, ["Exp"]), (-1, ["Slice", "Exp"])])
def test_a_slice_of_everything(step, left):
    x = value("x", "batch", 4)
    bounds = [constant("a", 0), constant("b", 9), constant("c", 1), constant("d", step)]
    assert ops_left(x, view("Slice", x, ("batch", 4), *bounds)) == left


def test_a_slice_of_a_part_stays():
    x = value("x", "batch", 4)
    bounds = [constant("a", 0), constant("b", 2), constant("c", 1)]
    assert ops_left(x, view("Slice", x, ("batch", 2), *bounds)) == ["Slice", "Exp"]


@pytest.mark.parametrize("is_read", [False, True])
def test_position_ids_go_only_where_nobody_reads_them(is_read):
    ids, positions = value("input_ids", "batch", 1), value("position_ids", "batch", 1)
    node = ir.node("Exp", [positions if is_read else ids])
    graph = ir.Graph([ids, positions], node.outputs, nodes=[node], opset_imports={"": 23})
    drop_unused_position_ids(graph)
    assert (positions in graph.inputs) is is_read
    assert ids in graph.inputs


def test_free_dimensions_get_the_contracts_names():
    names = {
        "input_ids": ("s1", "s2"),
        "logit_index": ("s3",),
        "total_sequence_length": (),
        "past_key_values.0.key": ("s4", 2, "s5", 16),
        "present.0.key": ("s4", 2, "s5", 16),
    }
    values = [value(name, *dims) for name, dims in names.items()]
    name_free_dimensions(ir.Graph(values, [], nodes=[], opset_imports={"": 23}))
    assert [[str(dim) for dim in v.shape] for v in values] == [
        ["batch", "sequence"],
        ["batch"],
        [],
        ["batch", "2", "capacity", "16"],
        ["batch", "2", "capacity", "16"],
    ]
