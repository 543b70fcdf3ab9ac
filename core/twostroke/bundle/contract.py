"""The graph contract: the tensors the engine knows how to feed, by name.

What a graph declares decides what it is fed, so most inputs are optional:

| tensor | shape | dtype |
|---|---|---|
| input_ids, position_ids | [batch, sequence] | int64 |
| logit_index | [batch, k]: positions within the chunk whose logits are wanted; or [batch] | int64 |
| attention_mask | [batch, longest row after this step]: ones, zeros behind shorter rows | int64 |
| num_logits_to_keep | []: how many of the chunk's last positions to answer logits of | int64 |
| logits | [batch, k, vocab]; with neither input of every position, or of the last one | floats |

How the KV cache is kept depends on the dialect. *fused* graphs write their tokens in place:

| tensor | shape | dtype |
|---|---|---|
| past_key_values.{i}.key / .value | [batch, kv_heads, capacity, head_dim] | KV dtype |
| present.{i}.key / .value | the same buffer as past | KV dtype |
| seqlens_k | [batch]: tokens in the row after this step, minus 1 | int32 |
| total_sequence_length | []: the longest row after this step | int32 |

(or neither of the last two, where an attention_mask says the same).

*standard* graphs (and those of other exporters) answer a longer cache for each one they are given,
and run one sequence at a time:

| tensor | shape | dtype |
|---|---|---|
| past_key_values.{i}.key / .value | [batch, kv_heads, past, head_dim] | KV dtype |
| present.{i}.key / .value | [batch, kv_heads, past + sequence, head_dim] | KV dtype |
| use_cache_branch | [1]: whether there is a past, in graphs that hold both strokes | bool |

A standard prefill graph without any past reads the first tokens of a prompt only.
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
NUM_LOGITS_TO_KEEP = "num_logits_to_keep"
ATTENTION_MASK = "attention_mask"
USE_CACHE_BRANCH = "use_cache_branch"
LOGITS = "logits"


def past_names(layer: int) -> tuple[str, str]:
    """Names of a layer's past key and value inputs."""
    return f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"


def present_names(layer: int) -> tuple[str, str]:
    """Names of a layer's present key and value outputs."""
    return f"present.{layer}.key", f"present.{layer}.value"


def check_contract(
    graph: str,
    stroke: Stroke,
    inputs: Iterable[str],
    outputs: Iterable[str],
    num_layers: int,
    *,
    dialect: str = "fused",
) -> None:
    """Refuses a graph the engine could not feed, naming the tensor at fault.

    Raises:
        ContractError: an unknown or missing input, or a missing output.
    """
    past = [name for layer in range(num_layers) for name in past_names(layer)]
    present = [name for layer in range(num_layers) for name in present_names(layer)]
    found, answered = set(inputs), set(outputs)
    required, optional = _inputs(stroke, dialect, found, past)
    faults = [
        *(f"declares an unknown input {n!r}" for n in found - required - optional),
        *(f"lacks the input {n!r}" for n in required - found),
        *(f"lacks the output {n!r}" for n in {LOGITS, *present} - answered),
        *(f"declares an unknown output {n!r}" for n in answered - {LOGITS, *present}),
    ]
    if faults:
        shown = "; ".join(sorted(faults)[:4])
        more = f" (and {len(faults) - 4} more)" if len(faults) > 4 else ""
        raise ContractError(
            f"{graph} is not a {stroke} graph of the {dialect} dialect that twostroke can feed: it "
            f"{shown}{more}. Export the model again with `twostroke export`."
        )


def _inputs(
    stroke: Stroke, dialect: str, found: set[str], past: list[str]
) -> tuple[set[str], set[str]]:
    """The inputs that a graph must declare, and those that it may."""
    optional = {POSITION_IDS, LOGIT_INDEX, NUM_LOGITS_TO_KEEP, ATTENTION_MASK}
    if dialect == "fused":
        lengths = {SEQLENS_K, TOTAL_SEQUENCE_LENGTH}
        # A mask tells the lengths as well; a graph that declares one of the two gets what it wants.
        has_mask = ATTENTION_MASK in found and not found & lengths
        return {INPUT_IDS, *past, *(() if has_mask else lengths)}, optional
    starts_from_nothing = stroke is Stroke.PREFILL and not found & set(past)
    required = {INPUT_IDS} if starts_from_nothing else {INPUT_IDS, *past}
    return required, optional | {USE_CACHE_BRANCH}
