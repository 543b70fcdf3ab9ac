"""What a mixture's experts compute between their two products, found by a numeric probe.

ONNX Runtime's expert operators know one gated activation, SwiGLU (Shazeer 2020) with the
parameters that gpt-oss added: `g * sigmoid(alpha * g) * (u + beta)` with g clamped from above and u
on both sides by `limit`. A model's gate is that one if there are parameters for which it gives the
same numbers; its name and its source are not asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

_HUGE = 1e4  # beyond every limit that a model would clamp to
_NEAR = 0.75  # where the curve is read, below every such limit


@dataclass(frozen=True, slots=True)
class Gate:
    """A SwiGLU: its parameters, and where gate and up lie in the product before it.

    is_interleaved: gate and up alternate; otherwise one half follows the other.
    is_gate_first: the gate comes before its up.
    """

    alpha: float
    beta: float
    limit: float
    is_interleaved: bool
    is_gate_first: bool

    def join(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """[..., inner] twice -> [..., 2 * inner], as the model lays them out."""
        pair = (gate, up) if self.is_gate_first else (up, gate)
        return torch.stack(pair, -1).flatten(-2) if self.is_interleaved else torch.cat(pair, -1)

    def apply(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The formula, elementwise."""
        gate = gate.clamp(max=self.limit)
        up = up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


def probe_gate(function: Callable[[torch.Tensor], torch.Tensor], num_inner: int) -> Gate | None:
    """The SwiGLU that `function` [rows, 2 * inner] -> [rows, inner] is; None for anything else.

    The function is only called, in float32; what it does to one channel must not depend on others.
    """
    for is_interleaved, is_gate_first in itertools.product((False, True), (True, False)):
        with torch.no_grad():
            try:
                gate = _fit(function, num_inner, is_interleaved, is_gate_first)
                if gate is not None and _agrees(function, gate, num_inner):
                    return gate
            except (RuntimeError, TypeError):  # wants other shapes
                return None
    return None


def _fit(
    function: Callable[[torch.Tensor], torch.Tensor],
    num_inner: int,
    is_interleaved: bool,
    is_gate_first: bool,
) -> Gate | None:
    """Solves the formula for its parameters at a few points; `_agrees` tells whether it holds."""
    layout = Gate(1.0, 0.0, math.inf, is_interleaved, is_gate_first)

    def at(gate: float, up: float) -> float:
        sides = [torch.full((1, num_inner), value) for value in (gate, up)]
        return float(function(layout.join(*sides))[0, 0])

    slope = at(_NEAR, 1.0) - at(_NEAR, 0.0)  # g * sigmoid(alpha * g)
    share = slope / _NEAR
    if not 0.0 < share < 1.0:
        return None
    alpha = _rounded(math.log(share / (1.0 - share)) / _NEAR)
    beta = _rounded(at(_NEAR, 0.0) / slope)
    peak = at(_HUGE, 1.0) - at(_HUGE, 0.0)  # the clamped gate, its sigmoid being 1
    limit = math.inf if peak >= 0.99 * _HUGE else _rounded(peak)
    return Gate(alpha, beta, limit, is_interleaved, is_gate_first) if limit > 0 else None


def _rounded(value: float) -> float:
    """Parameters are written in decimals; what float32 adds behind them is noise."""
    return round(value, 4)


def _agrees(function: Callable[[torch.Tensor], torch.Tensor], gate: Gate, num_inner: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    # The wide scale reaches beyond a limit, the narrow one shows what happens around zero.
    scales = torch.tensor([0.1, 1.0, 3.0, 30.0])[:, None]
    sides = [torch.randn((4, num_inner), generator=generator) * scales for _ in range(2)]
    theirs, mine = function(gate.join(*sides)), gate.apply(*sides)
    return theirs.shape == mine.shape and bool(torch.allclose(mine, theirs, rtol=1e-5, atol=1e-5))
