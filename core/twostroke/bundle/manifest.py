"""`bundle.json`: the facts of a bundle, everything the engine must know without torch.

The engine trusts the graphs' declared inputs over this file; the manifest says what cannot be
read from a graph: token ids, the context, how the weights were quantised, what was verified.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 1
MANIFEST_NAME = "bundle.json"


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Architecture(_Fact):
    """The shape of the model, as its own config tells it."""

    model_type: str
    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    num_parameters: int = Field(ge=0)


class KVLayer(_Fact):
    """The geometry of one layer's cache: [rows, num_kv_heads, capacity, head_dim], two sides."""

    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)


class Quantisation(_Fact):
    """How the weights are stored."""

    precision: str  # fp32, fp16, int8, int4
    block_size: int | None = None
    accuracy_level: int | None = None


class Tokens(_Fact):
    """Ids with a meaning. `eos_ids` is the union of config, generation config and tokenizer."""

    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None


class GenerationDefaults(_Fact):
    """What the model's generation config recommends; used where a request is silent."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class FileFact(_Fact):
    """Size and hash of one file of the bundle."""

    num_bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Verification(_Fact):
    """Measured at export against the source model in fp32.

    The largest absolute differences of logits over the prompt's last token and the decode steps,
    over how many steps the argmax was equal (of `num_steps`), and, on the export's built-in text,
    the mean KL divergence (nats) and the share of positions with the same most likely token.
    """

    num_steps: int
    prefill_max_abs_diff: float
    decode_max_abs_diff: float
    num_argmax_equal: int
    mean_kl: float | None = None
    top1_agreement: float | None = None
    num_text_tokens: int | None = None


class SelfCheck(_Fact):
    """A prompt and what both graphs answered at export: what `twostroke verify` repeats.

    Greedy ids after `prompt_ids`, by how much each one's logit led the next best, and of the first
    step the highest logits, so that a bundle can be checked on any machine without the source
    model: another processor rounds otherwise, which may decide a close race and nothing else.
    """

    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    greedy_margins: tuple[float, ...] = ()
    top_ids: tuple[int, ...]
    top_logits: tuple[float, ...]


class Manifest(_Fact):
    """The whole of `bundle.json`."""

    format_version: int = FORMAT_VERSION
    name: str
    architecture: Architecture
    context_tokens: int = Field(ge=1)
    kv_dtype: str = "float32"
    kv_layers: tuple[KVLayer, ...]
    quantisation: Quantisation
    dialect: str = "fused"
    prefill_graph: str = "prefill.onnx"
    decode_graph: str = "decode.onnx"
    tokens: Tokens = Tokens()
    generation: GenerationDefaults = GenerationDefaults()
    verification: Verification | None = None
    self_check: SelfCheck | None = None
    source: dict[str, Any] = Field(default_factory=dict)
    exporter: dict[str, str] = Field(default_factory=dict)
    files: dict[str, FileFact] = Field(default_factory=dict)
