"""Rotary embeddings moved into GroupQueryAttention, where a numeric probe says they agree.

While the model runs once on two tokens, every call of `apply_rotary_pos_emb` and of the rotary
module that made its cosines is written down. A layer's rotation can move inside the attention
operator if exactly the rotated tensors reach attention, and if the function, on random input,
equals one of the operator's conventions (Su et al. 2021, halves or interleaved pairs; the first
`rotary_dim` channels only where the cosines are narrower than the head).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

_FUNCTION = "apply_rotary_pos_emb"
_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # rotary module, its args and kwargs


@dataclass(frozen=True, slots=True)
class Rotation:
    """What GroupQueryAttention is given: caches [positions, rotary_dim / 2] and the layout."""

    cos: torch.Tensor
    sin: torch.Tensor
    is_interleaved: bool


@dataclass(frozen=True, slots=True)
class LayerRotary:
    """How one layer rotates: where its cosines come from, and in which layout."""

    call: _Call
    is_interleaved: bool
    stride: int  # 1: the first half of the cosines holds each frequency; 2: every second does

    def caches(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of positions 0 … num_positions - 1, [num_positions, rotary_dim / 2]."""
        cos, sin = _evaluate(self.call, num_positions)
        return _halved(cos[0], self.stride).clone(), _halved(sin[0], self.stride).clone()


@dataclass(frozen=True, slots=True)
class RotaryPlan:
    """For each attention layer its rotary, or None where the layer does not rotate."""

    layers: tuple[LayerRotary | None, ...]
    modules: tuple[Any, ...]  # the Python modules whose apply function is to be swapped


@dataclass(slots=True)
class RotaryObserver:
    """Collects what happened between the rotary modules and attention in one forward."""

    cosines: dict[int, tuple[torch.Tensor, _Call]] = field(default_factory=dict)
    rotated: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = field(default_factory=dict)
    functions: list[Callable[..., Any]] = field(default_factory=list)
    layers: list[tuple[int, Callable[..., Any]] | None] = field(default_factory=list)
    num_unmatched: int = 0

    def attend(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Called by the probing attention function for each layer, in order."""
        entry = self.rotated.pop(id(query), None)
        if entry is not None and entry[1] is key and entry[2] in self.cosines:
            self.layers.append((entry[2], self.functions[-1]))
        else:
            self.num_unmatched += entry is not None or bool(self.rotated)
            self.layers.append(None)
        self.rotated.clear()


@contextmanager
def observing_rotary(model: Any) -> Iterator[RotaryObserver]:
    """Wraps the model's rotary modules and apply functions for one eager forward."""
    observer = RotaryObserver()
    modules = _modeling_modules(model)
    originals = [getattr(module, _FUNCTION) for module in modules]

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def apply(q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
            rotated_q, rotated_k = function(q, k, cos, sin, *args, **kwargs)
            observer.functions.append(function)
            observer.rotated[id(rotated_q)] = (rotated_q, rotated_k, id(cos))
            return rotated_q, rotated_k

        return apply

    def remember(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if isinstance(output, tuple) and len(output) == 2:
            observer.cosines[id(output[0])] = (output[0], (module, args, kwargs))

    hooks = [
        module.register_forward_hook(remember, with_kwargs=True)
        for module in model.modules()
        if type(module).__name__.endswith("RotaryEmbedding")
    ]
    for module, original in zip(modules, originals, strict=True):
        setattr(module, _FUNCTION, recording(original))
    try:
        yield observer
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, _FUNCTION, original)
        for hook in hooks:
            hook.remove()


def plan_rotary(model: Any, observer: RotaryObserver, head_dim: int) -> RotaryPlan | None:
    """Decides which layers rotate inside attention; None where it is not all or nothing."""
    if observer.num_unmatched or not any(observer.layers):
        return None
    settled: dict[tuple[int, Any], LayerRotary | None] = {}
    layers: list[LayerRotary | None] = []
    for seen in observer.layers:
        if seen is None:
            layers.append(None)
            continue
        if seen not in settled:
            settled[seen] = _settle(observer.cosines[seen[0]][1], seen[1], head_dim)
        if settled[seen] is None:
            return None
        layers.append(settled[seen])
    return RotaryPlan(tuple(layers), tuple(_modeling_modules(model)))


@contextmanager
def rotating_later(plan: RotaryPlan | None) -> Iterator[None]:
    """Makes the apply functions hand q and k through, since attention will rotate them."""
    modules = plan.modules if plan is not None else ()
    originals = [getattr(module, _FUNCTION) for module in modules]
    for module in modules:
        setattr(module, _FUNCTION, lambda q, k, *args, **kwargs: (q, k))
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, _FUNCTION, original)


def _settle(call: _Call, function: Callable[..., Any], head_dim: int) -> LayerRotary | None:
    num_positions = 5
    cos, sin = _evaluate(call, num_positions)  # [1, positions, rotary_dim]
    if cos.shape[-1] > head_dim or cos.shape[-1] % 16:  # the operator's caches: multiples of 8
        return None
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((1, 2, num_positions, head_dim), generator=generator)
    expected_q, expected_k = function(states, states, cos, sin)
    for is_interleaved in (False, True):
        for stride in (1, 2):
            half_cos, half_sin = _halved(cos, stride), _halved(sin, stride)
            mine = rotate(states, half_cos[:, None], half_sin[:, None], is_interleaved)
            if torch.allclose(mine, expected_q, atol=1e-5) and torch.equal(expected_q, expected_k):
                return LayerRotary(call, is_interleaved, stride)
    return None


def rotate(
    states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_interleaved: bool
) -> torch.Tensor:
    """GroupQueryAttention's rotation of [..., head_dim] by half-width cosines and sines."""
    width = 2 * cos.shape[-1]
    rotated, passed = states[..., :width], states[..., width:]
    if is_interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated.chunk(2, dim=-1)
    real, imaginary = first * cos - second * sin, second * cos + first * sin
    if is_interleaved:
        joined = torch.stack((real, imaginary), dim=-1).flatten(-2)
    else:
        joined = torch.cat((real, imaginary), dim=-1)
    return torch.cat((joined, passed), dim=-1)


def _halved(cosines: torch.Tensor, stride: int) -> torch.Tensor:
    half = cosines.shape[-1] // 2
    return cosines[..., :half] if stride == 1 else cosines[..., ::2]


def _evaluate(call: _Call, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    module, args, kwargs = call
    positions = torch.arange(num_positions)[None]

    def swap(value: Any) -> Any:
        is_positions = isinstance(value, torch.Tensor) and not value.is_floating_point()
        return positions if is_positions else value

    with torch.no_grad():
        cos, sin = module(
            *(swap(value) for value in args), **{key: swap(v) for key, v in kwargs.items()}
        )
    return cos.float(), sin.float()


def _modeling_modules(model: Any) -> list[Any]:
    names = {type(module).__module__ for module in model.modules()}
    found = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in found if hasattr(module, _FUNCTION)]
