"""A gate is recognised by the numbers it gives."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from twostroke_export.expert_gate import Gate, probe_gate

NUM_INNER = 8


def halves(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return both[..., :NUM_INNER], both[..., NUM_INNER:]


def alternating(both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return both[..., 0::2], both[..., 1::2]


def silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


@pytest.mark.parametrize(
    ("sides", "is_interleaved"), [(halves, False), (alternating, True)], ids=["halves", "in turn"]
)
@pytest.mark.parametrize("is_gate_first", [True, False], ids=["gate first", "up first"])
@pytest.mark.parametrize(
    ("formula", "parameters"), [(silu, (1.0, 0.0, math.inf)), (clamped, (1.702, 1.0, 7.0))]
)
def test_finds_parameters_and_layout(formula, parameters, sides, is_interleaved, is_gate_first):
    def function(both: torch.Tensor) -> torch.Tensor:
        first, second = sides(both)
        return formula(first, second) if is_gate_first else formula(second, first)

    expected = Gate(*parameters, is_interleaved=is_interleaved, is_gate_first=is_gate_first)
    assert probe_gate(function, NUM_INNER) == expected


def gated_by(activation):
    return lambda both: activation(halves(both)[0]) * halves(both)[1]


@pytest.mark.parametrize(
    "function",
    [
        gated_by(functional.gelu),
        gated_by(lambda gate: functional.gelu(gate, approximate="tanh")),
        gated_by(functional.relu),
        gated_by(torch.tanh),
        gated_by(lambda gate: functional.silu(gate).clamp(max=7.0)),  # clamped behind, not before
        lambda both: silu(*halves(both)).softmax(-1),  # mixes channels
        lambda both: both,  # another shape
        lambda both: both @ torch.ones(3, 3),  # refuses the shape
    ],
    ids=["gelu", "tanh gelu", "relu", "tanh", "late clamp", "softmax", "identity", "raises"],
)
def test_refuses_what_is_no_swiglu(function):
    assert probe_gate(function, NUM_INNER) is None
