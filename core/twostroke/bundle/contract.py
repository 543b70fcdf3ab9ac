"""The graph contract: the tensors the engine knows how to feed, by name.

| tensor | shape | dtype | graphs |
|---|---|---|---|
| input_ids, position_ids (optional) | [batch, sequence]; decode: sequence = 1 | int64 | both |
| seqlens_k | [batch]: tokens in the row after this step, minus 1 | int32 | both |
| total_sequence_length | []: the longest row after this step | int32 | both |
| logit_index | [batch, k]: positions within the chunk whose logits are wanted | int64 | prefill |
| past_key_values.{i}.key / .value | [batch, kv_heads, capacity, head_dim] | KV dtype | both |
| logits | [batch, k, vocab]; decode: k = 1 | float32 | both |
| present.{i}.key / .value | the same buffer as past | KV dtype | both |
"""

from __future__ import annotations

from collections.abc import Iterable

from twostroke.errors import ContractError
from twostroke.types import Stroke

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
SEQLENS_K = "seqlens_k"
TOTAL_SEQUENCE_LENGTH = "total_sequence_length"
LOGIT_INDEX = "logit_index"
LOGITS = "logits"


def past_names(layer: int) -> tuple[str, str]:
    """Names of a layer's past key and value inputs."""
    return f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"


def present_names(layer: int) -> tuple[str, str]:
    """Names of a layer's present key and value outputs."""
    return f"present.{layer}.key", f"present.{layer}.value"


def check_contract(
    graph: str, stroke: Stroke, inputs: Iterable[str], outputs: Iterable[str], num_layers: int
) -> None:
    """Refuses a graph the engine could not feed, naming the tensor at fault.

    Raises:
        ContractError: an unknown or missing input, or a missing output.
    """
    past = [name for layer in range(num_layers) for name in past_names(layer)]
    present = [name for layer in range(num_layers) for name in present_names(layer)]
    required = {INPUT_IDS, SEQLENS_K, TOTAL_SEQUENCE_LENGTH, *past}
    optional = {POSITION_IDS}
    if stroke is Stroke.PREFILL:
        required.add(LOGIT_INDEX)
    declared_inputs, declared_outputs = set(inputs), set(outputs)
    faults = [
        *(f"declares an unknown input {n!r}" for n in declared_inputs - required - optional),
        *(f"lacks the input {n!r}" for n in required - declared_inputs),
        *(f"lacks the output {n!r}" for n in {LOGITS, *present} - declared_outputs),
        *(f"declares an unknown output {n!r}" for n in declared_outputs - {LOGITS, *present}),
    ]
    if faults:
        shown = "; ".join(sorted(faults)[:4])
        more = f" (and {len(faults) - 4} more)" if len(faults) > 4 else ""
        raise ContractError(
            f"{graph} is not a {stroke} graph that twostroke can feed: it {shown}{more}. "
            f"Export the model again with `twostroke export`."
        )
