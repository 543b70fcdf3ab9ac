"""The experts function of a traced mixture-of-experts model (transformers' ExpertsInterface).

The model's own code loops over the experts that a batch happened to choose, which no trace can
follow. Where ONNX Runtime has an operator for what the experts compute, the trace holds one
`twostroke::Experts` node for a layer, which `passes.experts` lowers to the operator of a precision.
Otherwise a graph of fixed shape has two ways: to gather the chosen experts' weights for each
token, which decode does (it reads as many experts as are active), or to run every expert over
every token and keep what was chosen, which prefill does (a copy of the weights for each token
would not fit in memory).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.expert_gate import Gate, probe_gate

EVERY = "twostroke_every_expert"
CHOSEN = "twostroke_chosen_experts"
DOMAIN, OPERATOR = "twostroke", "Experts"
log = logging.getLogger(__name__)
_FUNCTIONS = {Stroke.PREFILL: EVERY, Stroke.DECODE: CHOSEN}


@contextmanager
def choosing_experts(model: Any, stroke: Stroke, *, is_fused: bool = False) -> Iterator[None]:
    """Runs the model with the experts function of a stroke; does nothing to a dense model.

    With `is_fused`, experts that ONNX Runtime has an operator for become one node when traced.

    Raises:
        ExportError: the model has experts, but no plug point for them.
    """
    experts = expert_modules(model)
    if not experts:
        yield
        return
    before = model.config._experts_implementation
    model.set_experts_implementation(_FUNCTIONS[stroke])
    if model.config._experts_implementation != _FUNCTIONS[stroke]:
        raise ExportError(
            f"The architecture {model.config.model_type!r} does not dispatch its experts through "
            f"transformers' ExpertsInterface, so it cannot be exported; choose a model of an "
            f"architecture that does (mixtral, qwen3_moe, olmoe and most others)."
        )
    for module in experts:
        module.fused_gate = settle(module) if is_fused else None
    if is_fused and stroke is Stroke.PREFILL and any(m.fused_gate is None for m in experts):
        log.warning(
            "the experts of this %s model compute something else than a SwiGLU in float32, which "
            "is what one operator could do: a prompt runs all of them, not only the chosen ones",
            model.config.model_type,
        )
    try:
        yield
    finally:
        model.set_experts_implementation(before)
        for module in experts:
            del module.fused_gate


def expert_modules(model: Any) -> list[Any]:
    """The modules that hold the experts of a layer; none in a dense model."""
    return [module for module in model.modules() if type(module).__name__.endswith("Experts")]


def settle(module: Any) -> Gate | None:
    """The gate of experts that one operator can compute; None where it cannot."""
    if not getattr(module, "has_gate", False) or module.has_post_expert_norm:
        return None
    # Half floats are for GPUs, where no export is verified: plain operators cannot be misread.
    if module.down_proj.dtype != torch.float32:
        return None
    num_inner = module.down_proj.shape[1 if module.is_transposed else 2]
    return probe_gate(module._apply_gate, num_inner)


def _every_expert(
    module: Any,
    hidden_states: torch.Tensor,  # [tokens, hidden]
    top_k_index: torch.Tensor,  # [tokens, k] int64
    top_k_weights: torch.Tensor,  # [tokens, k]
) -> torch.Tensor:
    if module.fused_gate is not None:
        return _fused(module, hidden_states, top_k_index, top_k_weights)
    num_tokens, num_experts = hidden_states.shape[0], module.num_experts
    states = hidden_states[None].expand(num_experts, -1, -1)  # [experts, tokens, hidden]
    outputs = _feed_forward(module, states, None)  # [experts, tokens, hidden]
    weights = torch.zeros((num_tokens, num_experts), dtype=top_k_weights.dtype)
    weights = weights.scatter(1, top_k_index, top_k_weights)  # [tokens, experts]
    summed: torch.Tensor = (outputs * weights.t()[:, :, None]).sum(0)  # [tokens, hidden]
    return summed.to(hidden_states.dtype)


def _chosen_experts(
    module: Any,
    hidden_states: torch.Tensor,  # [tokens, hidden]
    top_k_index: torch.Tensor,  # [tokens, k] int64
    top_k_weights: torch.Tensor,  # [tokens, k]
) -> torch.Tensor:
    if module.fused_gate is not None:
        return _fused(module, hidden_states, top_k_index, top_k_weights)
    num_tokens, num_chosen = top_k_index.shape
    states = hidden_states[:, None].expand(-1, num_chosen, -1)  # [tokens, k, hidden]
    states = states.reshape(num_tokens * num_chosen, 1, -1)
    outputs = _feed_forward(module, states, top_k_index.reshape(-1))  # [tokens * k, 1, hidden]
    outputs = outputs.reshape(num_tokens, num_chosen, -1)
    summed: torch.Tensor = (outputs * top_k_weights[:, :, None]).sum(1)  # [tokens, hidden]
    return summed.to(hidden_states.dtype)


def _fused(
    module: Any,
    hidden_states: torch.Tensor,  # [tokens, hidden]
    top_k_index: torch.Tensor,  # [tokens, k] int64
    top_k_weights: torch.Tensor,  # [tokens, k]
) -> torch.Tensor:
    gate: Gate = module.fused_gate
    attributes = {
        "num_experts": module.down_proj.shape[0],
        "num_chosen": top_k_index.shape[1],
        "is_transposed": int(module.is_transposed),
        "is_interleaved": int(gate.is_interleaved),
        "is_gate_first": int(gate.is_gate_first),
        "alpha": gate.alpha,
        "beta": gate.beta,
        **({"limit": gate.limit} if gate.limit < math.inf else {}),
    }
    biases = [module.gate_up_proj_bias, module.down_proj_bias] if module.has_bias else []
    outputs: torch.Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{OPERATOR}",
        (
            hidden_states,
            top_k_index,
            top_k_weights.to(hidden_states.dtype),
            module.gate_up_proj,
            module.down_proj,
            *biases,
        ),
        attributes,
        dtype=hidden_states.dtype,
        shape=hidden_states.shape,
        version=1,
    )
    return outputs


def _feed_forward(module: Any, states: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    """`states` [experts, rows, hidden] through one expert each: all, or the `chosen` ones."""
    up = "gate_up_proj" if module.has_gate else "up_proj"
    projected = _project(module, up, states, chosen)
    inner = module._apply_gate(projected) if module.has_gate else module.act_fn(projected)
    outputs = _project(module, "down_proj", inner, chosen)
    if module.has_post_expert_norm:
        outputs = module.post_expert_norm(outputs)
    return outputs


def _project(
    module: Any, name: str, states: torch.Tensor, chosen: torch.Tensor | None
) -> torch.Tensor:
    """`states` [experts, rows, in] times each expert's weight -> [experts, rows, out]."""
    weight = _select(getattr(module, name), chosen)
    # Turning the states around costs less than turning the weights, at load or at each step.
    projected: torch.Tensor = states @ weight if module.is_transposed else (weight @ states.mT).mT
    if module.has_bias:
        projected = projected + _select(getattr(module, f"{name}_bias"), chosen)[:, None]
    return projected


def _select(parameter: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    return parameter if chosen is None else parameter.index_select(0, chosen)


ALL_EXPERTS_FUNCTIONS.register(EVERY, _every_expert)
ALL_EXPERTS_FUNCTIONS.register(CHOSEN, _chosen_experts)
