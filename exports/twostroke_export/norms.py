"""Norms traced as one operator, where a numeric probe confirms what they compute.

A norm module is recognised by what it does, not by its name: no children, one weight of one
dimension, and on random input equal to `x / sqrt(mean(x^2) + eps) * w` (Zhang and Sennrich 2019),
to the same with `1 + w` (Gemma), or to `x - mean(x)` normed likewise (Ba et al. 2016, Cohere).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_EPSILON_NAMES = ("variance_epsilon", "eps", "epsilon")


@dataclass(frozen=True, slots=True)
class Norm:
    """What a norm module computes; `adds_one`: its weight is the gain minus 1."""

    epsilon: float
    adds_one: bool = False
    is_centred: bool = False

    def __call__(self, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[..., channels] by a weight [channels]."""
        if self.is_centred:
            states = states - states.mean(-1, keepdim=True)
        return rms_norm(states, weight + self.adds_one, self.epsilon)


@contextmanager
def fused_norms(model: Any) -> Iterator[int]:
    """Swaps the forward of every confirmed norm; yields how many there are."""
    swapped = []
    for module in model.modules():
        settled = _settle(module)
        if settled is not None:
            module.forward = _emitting(module, settled)
            swapped.append(module)
    try:
        yield len(swapped)
    finally:
        for module in swapped:
            del module.forward, module.fused_weight


def _settle(module: Any) -> Norm | None:
    """What the module computes, if it is a norm with one weight."""
    weight = getattr(module, "weight", None)
    is_leaf = not any(True for _ in module.children())
    if not is_leaf or not isinstance(weight, torch.Tensor) or weight.ndim != 1:
        return None
    if len(list(module.parameters())) != 1 or isinstance(module, torch.nn.LayerNorm):
        return None
    epsilons = [getattr(module, name, None) for name in _EPSILON_NAMES]
    epsilon = next((value for value in epsilons if isinstance(value, float)), None)
    if epsilon is None:
        return None
    generator = torch.Generator().manual_seed(0)
    # Two scales: the small one makes a wrong epsilon visible.
    states = torch.randn((2, 3, weight.shape[0]), generator=generator)
    states = (states * torch.tensor([1e-3, 3.0])[:, None, None]).to(weight.dtype)
    with torch.no_grad():
        try:
            expected = module(states).float()
        except (TypeError, RuntimeError):  # wants other inputs: not a norm
            return None
        tolerance = 1e-5 if weight.dtype == torch.float32 else 1e-2
        for norm in (Norm(epsilon), Norm(epsilon, adds_one=True), Norm(epsilon, is_centred=True)):
            mine = norm(states.float(), weight.float())
            if mine.shape == expected.shape and torch.allclose(
                mine, expected, rtol=tolerance, atol=tolerance
            ):
                return norm
    return None


def rms_norm(states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`states` [..., channels] over its root mean square, times `weight` [channels]."""
    return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def _emitting(module: Any, norm: Norm) -> Any:
    weight = module.weight.detach()
    gain = weight + 1.0 if norm.adds_one else weight
    module.register_buffer("fused_weight", gain, persistent=False)

    def forward(states: torch.Tensor) -> torch.Tensor:  # [..., channels]
        normed: torch.Tensor = torch.onnx.ops.symbolic(
            "LayerNormalization" if norm.is_centred else "SimplifiedLayerNormalization",
            (states, module.fused_weight),
            {"axis": -1, "epsilon": norm.epsilon, "stash_type": 1},
            dtype=states.dtype,
            shape=states.shape,
            version=17 if norm.is_centred else 1,
        )
        return normed

    return forward
