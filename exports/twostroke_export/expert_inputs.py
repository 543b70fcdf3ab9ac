"""What the matrices of a mixture's experts are given, recorded while the model runs.

Experts are no modules of their own: all matrices of a layer lie in two parameters, which a module's
forward uses on whatever tokens it was told. The first matrices are given that module's input, the
second what its gate makes of the first product; the tokens of all experts count alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from twostroke_export.experts import expert_modules

Squares = dict[int, tuple[torch.Tensor, int]]  # by parameter address: sums [in], and over how many


@contextlib.contextmanager
def recording_expert_inputs(model: Any, rms_squared: dict[int, torch.Tensor]) -> Iterator[None]:
    """Adds the mean square [in] of what each matrix was given, by the parameter's address.

    On leaving; mutates `rms_squared`. Experts without a gate are left out.
    """
    squares: Squares = {}
    experts = [module for module in expert_modules(model) if getattr(module, "has_gate", False)]
    hooks = []
    for module in experts:
        hooks.append(module.register_forward_pre_hook(_first(module, squares)))
        module._apply_gate = _second(module, module._apply_gate, squares)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in experts:
            del module._apply_gate  # the class has the model's own
    rms_squared |= {pointer: total / count for pointer, (total, count) in squares.items()}


def _first(module: Any, squares: Squares) -> Callable[[Any, tuple[torch.Tensor, ...]], None]:
    return lambda _, inputs: _add(squares, module.gate_up_proj, inputs[0])


def _second(
    module: Any, gate: Callable[[torch.Tensor], torch.Tensor], squares: Squares
) -> Callable[[torch.Tensor], torch.Tensor]:
    def apply(both: torch.Tensor) -> torch.Tensor:
        inner = gate(both)
        _add(squares, module.down_proj, inner)
        return inner

    return apply


def _add(squares: Squares, parameter: torch.Tensor, given: torch.Tensor) -> None:
    rows = given.detach().float().reshape(-1, given.shape[-1])  # [tokens, in]
    total, count = squares.get(parameter.data_ptr(), (torch.zeros(rows.shape[1]), 0))
    squares[parameter.data_ptr()] = (total + rows.square().sum(0), count + len(rows))
