"""Finds out whether a model's rotary embeddings can move into GroupQueryAttention.

While the model runs once on two tokens, every call of `apply_rotary_pos_emb` and of the rotary
module that made its cosines is written down. A layer's rotation can move inside the attention
operator if exactly the rotated tensors reach attention, and if the function, on random input,
equals one of the operator's conventions (Su et al. 2021, halves or interleaved pairs; the first
`rotary_dim` channels only where the cosines are narrower than the head).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from twostroke_export.rotary import (
    APPLY,
    LayerRotary,
    RotaryCall,
    RotaryPlan,
    evaluate,
    halved,
    modeling_modules,
    rotate,
)


@dataclass(slots=True)
class RotaryObserver:
    """Collects what happened between the rotary modules and attention in one forward."""

    cosines: dict[int, tuple[torch.Tensor, RotaryCall]] = field(default_factory=dict)
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
    modules = modeling_modules(model)
    originals = [getattr(module, APPLY) for module in modules]

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
        setattr(module, APPLY, recording(original))
    try:
        yield observer
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, APPLY, original)
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
    return RotaryPlan(tuple(layers), tuple(modeling_modules(model)))


def _settle(call: RotaryCall, function: Callable[..., Any], head_dim: int) -> LayerRotary | None:
    num_positions = 5
    cos, sin = evaluate(call, num_positions)  # [1, positions, rotary_dim]
    if cos.shape[-1] > head_dim or cos.shape[-1] % 16:  # the operator's caches: multiples of 8
        return None
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((1, 2, num_positions, head_dim), generator=generator)
    expected_q, expected_k = function(states, states, cos, sin)
    for is_interleaved in (False, True):
        for stride in (1, 2):
            half_cos, half_sin = halved(cos, stride), halved(sin, stride)
            mine = rotate(states, half_cos[:, None], half_sin[:, None], is_interleaved)
            if torch.allclose(mine, expected_q, atol=1e-5) and torch.equal(expected_q, expected_k):
                return LayerRotary(call, is_interleaved, stride)
    return None
