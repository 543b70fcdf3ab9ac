"""Matrices stacked into one: either layout, and quantised as their parts are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from twostroke_export.passes.linears import StackedTensor, parameter_key
from twostroke_export.quantise import Blocks, quantise


@pytest.mark.parametrize("bits", [8, 4])
def test_a_packed_matrix_is_quantised_as_its_parts(bits):
    blocks = Blocks(bits, is_symmetric=bits == 8)
    arrays = [np.random.default_rng(n).standard_normal((40, 96)).astype(np.float32) for n in (1, 2)]
    values = [ir.Value(name=str(n), const_value=ir.tensor(a)) for n, a in enumerate(arrays)]
    whole = quantise(StackedTensor(values, [True, True], "both").numpy(), blocks)
    parts = [quantise(array, blocks) for array in arrays]
    for name in ("values", "scales", "zero_points"):
        pieces = [getattr(part, name) for part in parts]
        if pieces[0] is not None:
            assert np.array_equal(getattr(whole, name), np.concatenate(pieces)), name


def test_stacks_matrices_of_either_layout():
    above = np.arange(6, dtype=np.float32).reshape(2, 3)  # [out, in]
    below = np.arange(3, dtype=np.float32).reshape(3, 1)  # [in, out]
    values = [ir.Value(name=n, const_value=ir.tensor(a)) for n, a in (("a", above), ("b", below))]
    stacked = StackedTensor(values, [True, False], "both")
    assert list(stacked.shape) == [3, 3]
    assert np.array_equal(stacked.numpy(), np.concatenate((above, below.T)))


def test_rows_come_in_the_order_that_is_asked_for():
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    value = ir.Value(name="a", const_value=ir.tensor(array))
    plain = StackedTensor([value], [True], "a")
    turned = StackedTensor([value], [True], "a/sorted", np.array([2, 0, 1]))
    assert np.array_equal(turned.numpy(), array[[2, 0, 1]])
    keys = {parameter_key(ir.Value(name="s", const_value=t), "") for t in (plain, turned)}
    assert len(keys) == 2  # stored apart
