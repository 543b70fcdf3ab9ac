"""Finds out whether a model's rotary embeddings can move into GroupQueryAttention.

While the model runs once on two tokens, every call of `apply_rotary_pos_emb` and of the rotary
module that made its cosines is written down. A layer's rotation can move into attention if what
reaches attention begins with the rotated channels (families that rotate a part of each head join
the others to it afterwards), and if the function, on random input, equals one of the operator's
conventions (Su et al. 2021, halves or interleaved pairs).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from twostroke_export.rotary import (
    APPLY,
    Frequencies,
    LayerRotary,
    RotaryCall,
    RotaryPlan,
    evaluate,
    modeling_modules,
    rotate,
)


@dataclass(frozen=True, slots=True)
class Rotated:
    """One call of an apply function: what it gave, and the identity of its cosines."""

    query: torch.Tensor
    key: torch.Tensor
    cosines: int
    function: Callable[..., Any]

    def reaches(self, query: torch.Tensor, key: torch.Tensor) -> bool:
        """Whether attention's `query` and `key` begin with these rotated channels."""
        pairs = ((self.query, query), (self.key, key))
        return all(torch.equal(mine, theirs[..., : mine.shape[-1]]) for mine, theirs in pairs)


@dataclass(slots=True)
class RotaryObserver:
    """Collects what happened between the rotary modules and attention in one forward."""

    cosines: dict[int, tuple[torch.Tensor, RotaryCall]] = field(default_factory=dict)
    rotated: list[Rotated] = field(default_factory=list)
    layers: list[Rotated | None] = field(default_factory=list)
    num_unmatched: int = 0

    def attend(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Called by the probing attention function for each layer, in order."""
        seen = self.rotated[0] if len(self.rotated) == 1 else None
        if seen is not None and (not seen.reaches(query, key) or seen.cosines not in self.cosines):
            seen = None
        self.num_unmatched += seen is None and bool(self.rotated)
        self.layers.append(seen)
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
            observer.rotated.append(Rotated(rotated_q, rotated_k, id(cos), function))
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
    settled: dict[tuple[int, Any, int], LayerRotary | None] = {}
    layers: list[LayerRotary | None] = []
    for seen in observer.layers:
        if seen is None:
            layers.append(None)
            continue
        key = (seen.cosines, seen.function, seen.query.shape[-1])
        if key not in settled:
            settled[key] = _settle(observer.cosines[seen.cosines][1], seen, head_dim)
        if settled[key] is None:
            return None
        layers.append(settled[key])
    return RotaryPlan(tuple(layers), tuple(modeling_modules(model)))


def _settle(call: RotaryCall, seen: Rotated, head_dim: int) -> LayerRotary | None:
    num_positions, width = 5, seen.query.shape[-1]
    cos, sin = evaluate(call, num_positions)  # [1, positions, cosines]
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((1, 2, num_positions, width), generator=generator)
    expected_q, expected_k = seen.function(states, states, cos, sin)
    for is_interleaved, frequencies in itertools.product((False, True), Frequencies):
        half_cos, half_sin = frequencies.once(cos), frequencies.once(sin)
        if 2 * half_cos.shape[-1] > width:
            continue
        mine = rotate(states, half_cos[:, None], half_sin[:, None], is_interleaved)
        if torch.allclose(mine, expected_q, atol=1e-5) and torch.equal(expected_q, expected_k):
            return LayerRotary(call, is_interleaved, frequencies, head_dim)
    return None
