"""Balances activations against weights before int8, at no cost at run time.

Where one channel of an activation is much larger than its neighbours, the block that is quantised
around it loses the others. Dividing each channel by a factor and multiplying the weight that
reads it by the same factor changes nothing in exact arithmetic, and the factors of SmoothQuant
(Xiao et al. 2023), s = rms(activation)^a / max|weight|^(1 - a), make both sides easy to quantise.
The division is folded into what produces the activation: the gain of a norm, the up projection
behind a gate, or the value projection behind attention. Everything else is left as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from twostroke_export.expert_inputs import recording_expert_inputs
from twostroke_export.passes.channels import Channels, find_channels

_ALPHA = 0.6
_LIMITS = (1e-2, 1e2)  # of a factor, around a geometric mean of 1

Pointer = int


def balance(model: Any, graph: ir.Graph, token_ids: Sequence[int]) -> int:
    """Rescales the parameters that `graph` reads, in place; answers how many places it balanced.

    Mutates the torch model's parameters, which every graph traced from it reads too; what the
    model computes stays the same up to rounding. `token_ids` [tokens] is text to calibrate on.
    """
    rms = measure_rms(model, token_ids)
    parameters = {parameter.data_ptr(): parameter for parameter in model.parameters()}
    num_balanced = 0
    for place in find_channels(graph):
        if not all(pointer in parameters for pointer in place.pointers):
            continue  # computed from a parameter (a gain of 1 + w): nothing to fold into
        activation = next((rms[w.pointer] for w in place.readers if w.pointer in rms), None)
        if activation is not None:
            _rescale(place, activation, parameters)
            num_balanced += 1
    return num_balanced


def measure_rms(model: Any, token_ids: Sequence[int]) -> dict[Pointer, torch.Tensor]:
    """Root mean square of each input channel [in] of every matrix, by the weight's address."""
    sums: dict[Pointer, torch.Tensor] = {}
    with _recording(model, sums), recording_expert_inputs(model, sums), torch.no_grad():
        model(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
    return {pointer: total.sqrt() for pointer, total in sums.items()}


@contextlib.contextmanager
def _recording(model: Any, sums: dict[Pointer, torch.Tensor]) -> Iterator[None]:
    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        x = inputs[0].float()  # [..., in]
        mean_square = x.reshape(-1, x.shape[-1]).square().mean(0)  # [in]
        pointer = module.weight.data_ptr()
        sums[pointer] = torch.maximum(sums.get(pointer, mean_square), mean_square)

    matrices = [
        module
        for module in model.modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
        and not isinstance(module, torch.nn.Embedding)
    ]
    hooks = [module.register_forward_pre_hook(record) for module in matrices]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _rescale(
    place: Channels, activation: torch.Tensor, parameters: Mapping[Pointer, torch.Tensor]
) -> None:
    """Multiplies the readers' input channels and divides the producer's. Mutates parameters."""
    peaks = [
        parameters[reader.pointer].detach().abs().amax(0 if reader.is_out_in else 1)  # [in]
        for reader in place.readers
    ]
    peak = torch.stack(peaks).amax(0)
    shared = place.share(activation.square(), "mean").sqrt()  # [produced]
    factors = shared.clamp(min=1e-6) ** _ALPHA / place.share(peak, "amax").clamp(min=1e-6) ** (
        1.0 - _ALPHA
    )
    factors = (factors / factors.log().mean().exp()).clamp(*_LIMITS)
    spread = place.spread(factors)  # [in]
    for reader in place.readers:
        parameters[reader.pointer].data.mul_(spread if reader.is_out_in else spread[:, None])
    for producer in place.producers:
        stored = parameters[producer.pointer].data
        is_matrix_out_in = stored.ndim == 2 and producer.is_out_in
        stored.div_(factors[:, None] if is_matrix_out_in else factors)
