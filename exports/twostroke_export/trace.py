"""Traces the model once for each stroke into an ONNX graph that keeps the graph contract."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from twostroke.bundle import contract
from twostroke.errors import ExportError
from twostroke.types import Stroke
from twostroke_export.activations import fused_activations
from twostroke_export.experts import choosing_experts
from twostroke_export.norms import fused_norms
from twostroke_export.observe import Observed
from twostroke_export.own_attention import OwnAttentionModule, attending_eagerly
from twostroke_export.plug_point import FUSED, attending
from twostroke_export.quiet import quiet
from twostroke_export.rotary import rotating_later
from twostroke_export.stroke_module import StrokeModule

OPSET = 23


def trace(model: Any, observed: Observed, stroke: Stroke, context_tokens: int) -> ir.Model:
    """The graph of one stroke, its weights still those of the torch model (nothing is copied).

    Raises:
        ExportError: torch cannot trace the model.
    """
    is_fusable = observed.is_fusable
    if is_fusable:
        module: Any = StrokeModule(model, observed, context_tokens)
    else:
        module = OwnAttentionModule(model)
    inputs, shapes = _example(observed, stroke, next(model.parameters()).dtype)
    names = [name for name, value in _flat_names(observed, stroke) if value]
    present = [n for i in range(len(observed.layers)) for n in contract.present_names(i)]
    with (
        attending(model, FUSED) if is_fusable else attending_eagerly(model),
        choosing_experts(model, stroke, is_fused=True),
        fused_norms(model),
        fused_activations(model),
        rotating_later(observed.rotary),
        quiet(),
        torch.no_grad(),
    ):
        try:
            program = torch.onnx.export(
                module.eval(),
                kwargs=inputs,
                dynamic_shapes=shapes,
                input_names=names,
                output_names=[contract.LOGITS, *present],
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
                optimize=False,
            )
        except ExportError:
            raise
        except Exception as error:
            raise _explain(model, stroke, error) from error
    if program is None:
        raise ExportError(f"torch traced no {stroke} graph of {model.config.model_type!r}.")
    traced: ir.Model = program.model
    return traced


def _flat_names(observed: Observed, stroke: Stroke) -> list[tuple[str, bool]]:
    past = [name for i in range(len(observed.layers)) for name in contract.past_names(i)]
    return [
        (contract.INPUT_IDS, True),
        (contract.POSITION_IDS, True),
        (contract.SEQLENS_K, observed.is_fusable),
        (contract.TOTAL_SEQUENCE_LENGTH, observed.is_fusable),
        (contract.LOGIT_INDEX, stroke is Stroke.PREFILL),
        *((name, True) for name in past),
    ]


def _example(
    observed: Observed, stroke: Stroke, dtype: torch.dtype
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs to trace with, and which of their dimensions stay free.

    Every free size differs from the others and from 0 and 1, so that none is taken for another.
    """
    batch, capacity = 2, 11
    sequence = 5 if stroke is Stroke.PREFILL else 1
    ids = torch.arange(batch * sequence).reshape(batch, sequence) % 7
    is_free = {0: "batch", 1: "sequence"} if stroke is Stroke.PREFILL else {0: "batch"}
    past = []
    for layer in observed.layers:
        shape = (batch, layer.num_kv_heads, capacity, layer.head_dim)
        past += [torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)]
    inputs = {
        "input_ids": ids,
        "position_ids": torch.arange(sequence).expand(batch, sequence).contiguous(),
        "seqlens_k": torch.full((batch,), sequence - 1, dtype=torch.int32),
        "total_sequence_length": torch.tensor(sequence, dtype=torch.int32),
        "logit_index": torch.zeros((batch, 3), dtype=torch.int64),
        "past": past,
    }
    shapes: dict[str, Any] = {
        "input_ids": is_free,
        "position_ids": is_free,
        "seqlens_k": {0: "batch"},
        "total_sequence_length": {},
        "logit_index": {0: "batch", 1: "k"},
        "past": [{0: "batch", 2: "capacity"}] * len(past),
    }
    if stroke is Stroke.DECODE:
        inputs["logit_index"] = shapes["logit_index"] = None
    if not observed.is_fusable:
        for name in (contract.SEQLENS_K, contract.TOTAL_SEQUENCE_LENGTH):
            del inputs[name], shapes[name]
    return inputs, shapes


def _explain(model: Any, stroke: Stroke, error: Exception) -> ExportError:
    causes: list[BaseException] = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in causes:
        if isinstance(cause, ExportError):
            return cause
    first_line = (str(causes[-1]).strip() or type(causes[-1]).__name__).splitlines()[0]
    return ExportError(
        f"torch could not trace the {stroke} graph of a {model.config.model_type!r} model "
        f"({type(causes[-1]).__name__}: {first_line[:200]}); please report the architecture."
    )
