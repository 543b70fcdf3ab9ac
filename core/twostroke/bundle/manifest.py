"""`bundle.json`: the facts of a bundle, everything the engine must know without torch.

The engine trusts the graphs' declared inputs over this file; the manifest says what cannot be
read from a graph: token ids, the context, how the weights were quantised, what was verified.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from twostroke.types import Stroke

FORMAT_VERSION = 2
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


Dialect = Literal["fused", "standard"]
"""`fused` uses ONNX Runtime's own operators and writes the KV cache in place; `standard` is plain
ONNX, which compilers take whole, and answers a longer cache for each one it is given."""


class Quantisation(_Fact):
    """How a graph's weights are stored, and in which floats it computes.

    `group_bits` says of a mixed precision which matrices have how many bits, by the names of those
    that share a product; `is_symmetric` None that not all have zero points, or none needs them.
    """

    precision: str  # fp32, fp16, bf16, int8, int4, mixed
    block_size: int | None = None
    is_symmetric: bool | None = None
    accuracy_level: int | None = None
    activations: str = "float32"  # numpy's name: float32, float16; or bfloat16
    group_bits: dict[str, int] | None = None


class GraphFact(_Fact):
    """One graph of the bundle: `file` computes `stroke` in `dialect`.

    It reads `weight_bytes` of weights, of which the other stroke reads `shared_weight_bytes` too.
    """

    stroke: Stroke
    dialect: Dialect = "fused"
    file: str
    quantisation: Quantisation
    kv_dtype: str = "float32"  # or float16, bfloat16, int8
    weight_bytes: int | None = None
    shared_weight_bytes: int | None = None


def graph_file(stroke: Stroke, dialect: Dialect = "fused") -> str:
    """The name of a graph's file: `prefill.onnx`, `decode.standard.onnx`."""
    return f"{stroke}.onnx" if dialect == "fused" else f"{stroke}.{dialect}.onnx"


def both_strokes(
    quantisation: Quantisation, *, dialect: Dialect = "fused", kv_dtype: str = "float32"
) -> tuple[GraphFact, ...]:
    """The facts of a prefill and a decode graph that are made alike."""
    return tuple(
        GraphFact(
            stroke=stroke,
            dialect=dialect,
            file=graph_file(stroke, dialect),
            quantisation=quantisation,
            kv_dtype=kv_dtype,
        )
        for stroke in Stroke
    )


class CutFact(_Fact):
    """The graph `file` once more, as two: the first layers, and the others with the head.

    Both halves read the bundle's own weights.
    """

    file: str
    num_front_layers: int = Field(ge=1)
    front: str
    back: str


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
    """Size and hash of one file of the bundle; another tool's folder records no hash."""

    num_bytes: int = Field(ge=0)
    sha256: str | None = Field(pattern="^[0-9a-f]{64}$")


class Verification(_Fact):
    """Measured at export against the source model in fp32.

    The largest absolute differences of logits over the prompt's last token and the decode steps,
    over how many steps the argmax was equal (of `num_steps`), and, on the export's built-in text,
    the mean KL divergence (nats) and the share of positions with the same most likely token. Both
    graphs are of `dialect`. `measured_in` names the floats that they were run in where those are
    not their own (bfloat16, for which processors have no kernels).
    """

    dialect: Dialect = "fused"
    num_steps: int
    prefill_max_abs_diff: float
    decode_max_abs_diff: float
    num_argmax_equal: int
    mean_kl: float | None = None
    top1_agreement: float | None = None
    num_text_tokens: int | None = None
    measured_in: str | None = None


class Evaluation(_Fact):
    """Measured on a text by `twostroke evaluate`, or at export by `--evaluate`.

    Perplexity of the text and, against the logits of `source` at every scored token, the mean KL
    divergence (nats) and the share of tokens with the same most likely candidate. `num_tokens` were
    scored, in windows of at most `window_tokens`; see `twostroke.evaluation.windows`.
    """

    text: str  # the file's name, without its folder
    text_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    num_tokens: int = Field(ge=1)
    window_tokens: int = Field(ge=1)
    backend: str
    perplexity: float
    source: str | None = None
    source_perplexity: float | None = None
    mean_kl: float | None = None
    top1_agreement: float | None = None

    def repeats(self, other: Evaluation) -> bool:
        """Whether both measured the same thing, so that only the newer one counts."""
        names = ("text_sha256", "num_tokens", "window_tokens", "backend", "source")
        return all(getattr(self, name) == getattr(other, name) for name in names)


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
    """The whole of `bundle.json`. There is a graph for each stroke; the first one is the default.

    `verifications` holds one for each dialect, the default's first. `manifest_sha256` is written by
    `seal` and checked when a bundle is opened; see `twostroke.bundle.digest`.
    """

    format_version: int = FORMAT_VERSION
    name: str
    architecture: Architecture
    context_tokens: int = Field(ge=1)
    kv_layers: tuple[KVLayer, ...]
    graphs: tuple[GraphFact, ...]
    cuts: tuple[CutFact, ...] = ()
    tokens: Tokens = Tokens()
    generation: GenerationDefaults = GenerationDefaults()
    verifications: tuple[Verification, ...] = ()
    self_check: SelfCheck | None = None
    evaluations: tuple[Evaluation, ...] = ()
    source: dict[str, Any] = Field(default_factory=dict)
    exporter: dict[str, str] = Field(default_factory=dict)
    files: dict[str, FileFact] = Field(default_factory=dict)
    manifest_sha256: str | None = None

    @field_validator("graphs")
    @classmethod
    def _both_strokes_are_there(cls, graphs: tuple[GraphFact, ...]) -> tuple[GraphFact, ...]:
        kinds = [(graph.stroke, graph.dialect) for graph in graphs]
        lacking = [stroke for stroke in Stroke if stroke not in {kind[0] for kind in kinds}]
        if lacking:
            raise ValueError(f"there is no {lacking[0]} graph")
        if len(set(kinds)) < len(kinds):
            raise ValueError("two graphs of one stroke and dialect")
        return graphs

    def cut(self, file: str, num_front_layers: int) -> CutFact | None:
        """The halves of a graph behind so many layers; None where it was not cut there."""
        for cut in self.cuts:
            if (cut.file, cut.num_front_layers) == (file, num_front_layers):
                return cut
        return None

    def graph(self, stroke: Stroke, dialect: str | None = None) -> GraphFact | None:
        """The graph of a stroke in a dialect (None: the default's); None where there is none."""
        for graph in self.graphs:
            if graph.stroke is stroke and dialect in (None, graph.dialect):
                return graph
        return None

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """The dialects of the graphs, each once, the default's first."""
        return tuple(dict.fromkeys(graph.dialect for graph in self.graphs))

    @property
    def quantisation(self) -> Quantisation:
        """That of the default decode graph, which reads the weights at each step."""
        return self._default(Stroke.DECODE).quantisation

    @property
    def precision(self) -> str:
        """E.g. `int8`, or `fp32/int4` where prefill and decode differ."""
        names = [self._default(stroke).quantisation.precision for stroke in Stroke]
        return "/".join(dict.fromkeys(names))

    @property
    def kv_dtype(self) -> str:
        """In which the default decode graph keeps its cache."""
        return self._default(Stroke.DECODE).kv_dtype

    @property
    def verification(self) -> Verification | None:
        """What was measured on the default graphs."""
        return self.verifications[0] if self.verifications else None

    def _default(self, stroke: Stroke) -> GraphFact:
        graph = self.graph(stroke)
        assert graph is not None  # the validator saw to it
        return graph
