"""Activations are recognised by what they compute, not by what they are called."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from twostroke_export.activations import fused_activations

STATES = torch.linspace(-6, 6, 64)


@pytest.mark.parametrize(
    ("name", "approximation"),
    [
        ("gelu", "none"),
        ("gelu_python", "none"),
        ("gelu_new", "tanh"),
        ("gelu_fast", "tanh"),
        ("gelu_pytorch_tanh", "tanh"),
        ("gelu_accurate", "tanh"),
    ],
)
def test_every_gelu_becomes_one_operator_and_is_put_back(name, approximation):
    module = ACT2FN[name]
    before = module(STATES)
    with fused_activations(torch.nn.Sequential(module)) as num_swapped:
        assert num_swapped == 1
        program = torch.onnx.export(
            module.eval(), (STATES,), dynamo=True, opset_version=23, verbose=False, optimize=False
        )
        assert torch.allclose(module(STATES), before, atol=1e-5)
    assert [node.op_type for node in program.model.graph] == ["Gelu"]
    assert program.model.graph[0].attributes["approximate"].as_string() == approximation
    assert "forward" not in vars(module)


@pytest.mark.parametrize("name", ["gelu_10", "quick_gelu", "relu", "silu", "tanh", "linear"])
def test_anything_else_is_left_alone(name):
    with fused_activations(torch.nn.Sequential(ACT2FN[name])) as num_swapped:
        assert num_swapped == 0


def test_modules_with_parameters_or_children_are_not_tried():
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.num_calls = 0

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            self.num_calls += 1
            return torch.nn.functional.gelu(states)

    module = Counting()
    with fused_activations(torch.nn.Sequential(module, torch.nn.Dropout())) as num_swapped:
        assert num_swapped == 0
    assert module.num_calls == 0
