"""Rotary embeddings inside GroupQueryAttention: which layers rotate, and by which angles."""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

APPLY = "apply_rotary_pos_emb"  # what transformers calls it in every family that has it
RotaryCall = tuple[Any, tuple[Any, ...], dict[str, Any]]  # a rotary module, its args and kwargs
_CACHE_STEP = 8  # the width of GroupQueryAttention's caches is a multiple of it


class Frequencies(enum.Enum):
    """Where a family's cosines [..., width] hold each frequency once."""

    FIRST_HALF = enum.auto()
    EVERY_SECOND = enum.auto()
    WHOLE = enum.auto()

    def once(self, cosines: torch.Tensor) -> torch.Tensor:
        """[..., width] -> [..., rotary_dim / 2]."""
        if self is Frequencies.FIRST_HALF:
            return cosines[..., : cosines.shape[-1] // 2]
        return cosines[..., ::2] if self is Frequencies.EVERY_SECOND else cosines


@dataclass(frozen=True, slots=True)
class Rotation:
    """What rotates q and k: caches [positions, rotary_dim / 2] and the layout."""

    cos: torch.Tensor
    sin: torch.Tensor
    is_interleaved: bool

    @property
    def fits_attention(self) -> bool:
        """Whether GroupQueryAttention takes these caches; else an operator before it does."""
        return int(self.cos.shape[-1]) % _CACHE_STEP == 0


@dataclass(frozen=True, slots=True)
class LayerRotary:
    """How one layer rotates: where its cosines come from, and in which layout."""

    call: RotaryCall
    is_interleaved: bool
    frequencies: Frequencies
    head_dim: int

    def caches(self, num_positions: int, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of positions 0 … num_positions - 1, [num_rows, rotary_dim / 2].

        Where the layout allows, they are widened by angles of zero to what attention takes.

        The rows behind the last position repeat it. They only turn tokens that nobody reads, but
        some families change every angle once they are asked for a position past their limit.
        """
        positions = torch.arange(num_rows).clamp(max=num_positions - 1)
        cos, sin = (
            self.frequencies.once(side[0])[positions] for side in evaluate(self.call, num_positions)
        )
        num_missing = -cos.shape[-1] % _CACHE_STEP
        if not self.is_interleaved or 2 * (cos.shape[-1] + num_missing) > self.head_dim:
            return cos, sin  # in halves, every channel would find another partner
        pad = torch.nn.functional.pad
        return pad(cos, (0, num_missing), value=1.0), pad(sin, (0, num_missing))


@dataclass(frozen=True, slots=True)
class RotaryPlan:
    """For each attention layer its rotary, or None where the layer does not rotate."""

    layers: tuple[LayerRotary | None, ...]
    modules: tuple[Any, ...]  # the Python modules whose apply function is to be swapped


@contextmanager
def rotating_later(plan: RotaryPlan | None) -> Iterator[None]:
    """Makes the apply functions hand q and k through, since attention will rotate them."""
    modules = plan.modules if plan is not None else ()
    originals = [getattr(module, APPLY) for module in modules]
    for module in modules:
        setattr(module, APPLY, lambda q, k, *args, **kwargs: (q, k))
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, APPLY, original)


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


def evaluate(call: RotaryCall, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [1, num_positions, width] float32 of positions from 0.

    Repeats the recorded call with other positions, its one tensor of integers.
    """
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


def modeling_modules(model: Any) -> list[Any]:
    """The Python modules of the model's code that rotate q and k with one apply function.

    A few families rotate one tensor at a time; their own code is traced instead.
    """
    names = {type(module).__module__ for module in model.modules()}
    found = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in found if _takes_both(getattr(module, APPLY, None))]


def _takes_both(apply: Any) -> bool:
    """Whether a function's first parameters are q, k, cos and sin."""
    if apply is None:
        return False
    return tuple(inspect.signature(apply).parameters)[:4] == ("q", "k", "cos", "sin")
