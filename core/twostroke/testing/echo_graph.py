"""What stands in the echo backend's "graphs", and what they answer."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twostroke.errors import BundleError
from twostroke.types import TokenId

WANTED_LOGIT = 8.0
NOISE_LOGIT = 4.0
"""The wanted token has 8, all others lie in [0, 4): greedy is sure, temperature 1 is not."""


@dataclass(frozen=True, slots=True)
class EchoGraph:
    """What stands in an echo graph file (JSON)."""

    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    separator_id: TokenId
    eos_id: TokenId
    position_ids: bool = False
    attention_mask: bool = False  # tells the rows' lengths instead of seqlens_k
    logits: str = "chosen"  # by prefill's logit_index; "tail": by num_logits_to_keep; "all"
    dialect: str = "fused"
    read_delay_s_per_token: float = 0.0  # of prefill, beside what the backend's options say


def next_token(graph: EchoGraph, history: list[TokenId]) -> TokenId:
    """The separator, then all that stood before it, then the end of the sequence."""
    if graph.separator_id not in history:
        return graph.separator_id
    length = history.index(graph.separator_id)
    repeated = len(history) - length - 1
    return history[repeated] if repeated < length else graph.eos_id


def echo_logits(graph: EchoGraph, history: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """What follows a row's tokens [length]: logits [vocab]."""
    noise = np.random.default_rng(zlib.crc32(history.tobytes()))
    logits = noise.random(graph.vocab_size, dtype=np.float32) * np.float32(NOISE_LOGIT)
    logits[next_token(graph, history.tolist())] = WANTED_LOGIT
    return logits


def read_graph(file: Path) -> EchoGraph:
    """An echo graph from its file.

    Raises:
        BundleError: the file is no echo graph.
    """
    try:
        return EchoGraph(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise BundleError(
            f"{file} is no echo graph ({type(error).__name__}). Make an echo bundle with "
            f"twostroke.testing.bundles.make_echo_bundle."
        ) from error
