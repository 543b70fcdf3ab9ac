"""Norms are recognised by what they compute, not by what they are called."""

from __future__ import annotations

import pytest
import torch
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from twostroke_export.norms import fused_norms, rms_norm


class Disguised(torch.nn.Module):
    """An RMS norm under another name, or nearly one."""

    def __init__(self, eps: float = 1e-5, claimed: float | None = None, shift: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(32))
        self.real, self.shift = eps, shift
        self.eps = eps if claimed is None else claimed

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return rms_norm(states, self.weight, self.real) + self.shift


def seeded(module: torch.nn.Module) -> torch.nn.Module:
    torch.nn.init.normal_(module.weight)
    return torch.nn.Sequential(module)


@pytest.mark.parametrize(
    "module", [LlamaRMSNorm(32), Gemma3RMSNorm(32), CohereLayerNorm(32), Disguised()]
)
def test_norms_are_swapped_and_put_back(module):
    model = seeded(module)
    states = torch.randn(2, 3, 32)
    before, keys = model(states), set(model.state_dict())
    with fused_norms(model) as num_swapped:
        assert num_swapped == 1
        assert "forward" in vars(module)
    assert torch.equal(model(states), before)
    assert set(model.state_dict()) == keys
    assert not hasattr(module, "fused_weight")


def test_one_is_added_where_the_module_adds_it():
    module = Gemma3RMSNorm(32)
    model = seeded(module)
    with fused_norms(model):
        assert torch.allclose(module.fused_weight, module.weight + 1)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.LayerNorm(32),
        Disguised(shift=0.01),
        Disguised(eps=1e-3, claimed=1e-6),
        torch.nn.Linear(32, 32, bias=False),
        torch.nn.PReLU(32),
        torch.nn.Embedding(32, 4),
    ],
)
def test_anything_else_is_left_alone(module):
    with fused_norms(torch.nn.Sequential(module)) as num_swapped:
        assert num_swapped == 0


def test_what_is_emitted_tells_centred_norms_from_others():
    for module, operator in ((CohereLayerNorm(32), "LayerNormalization"), (LlamaRMSNorm(32), None)):
        with fused_norms(seeded(module)):
            program = torch.onnx.export(
                module.eval(),
                (torch.randn(2, 3, 32),),
                dynamo=True,
                opset_version=23,
                verbose=False,
            )
        operators = [node.op_type for node in program.model.graph]
        assert operators == [operator or "SimplifiedLayerNormalization"]


def test_put_back_after_a_fault():
    module = LlamaRMSNorm(32)
    with pytest.raises(ZeroDivisionError), fused_norms(torch.nn.Sequential(module)):
        raise ZeroDivisionError
    assert "forward" not in vars(module)
