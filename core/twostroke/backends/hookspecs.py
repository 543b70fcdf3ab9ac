"""The hooks a plugin may implement. They run once, at start-up.

A plugin is a module (or object) named by an entry point of the group `twostroke`:

    from twostroke.backends import BackendSpec, hookimpl

    @hookimpl
    def twostroke_backends() -> list[BackendSpec]:
        return [BackendSpec(name="mine", api_version=1, ...)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from twostroke.backends.protocol import BackendSpec

if TYPE_CHECKING:
    from twostroke.server.surface import Surface
    from twostroke.text.parsers import ParserSpec

PROJECT = "twostroke"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What `twostroke export` asks of an exporter.

    `source` is a folder, a hub id, a .gguf file; `out` the bundle's folder, which must not exist.
    `context_tokens` None means the model's own limit. `prefill_precision` and `decode_precision`
    are for a stroke that wants another `precision`. None leaves a choice to the exporter.
    """

    source: str
    out: Path
    precision: str = "int8"
    context_tokens: int | None = None
    name: str | None = None
    prefill_precision: str | None = None
    decode_precision: str | None = None
    dialects: tuple[str, ...] = ("fused",)
    block_size: int | None = None  # weights that share a scale
    is_symmetric: bool | None = None  # without zero points
    accuracy_level: int | None = None  # of MatMulNBits: 4 multiplies in int8, 1 in float32
    activations: str | None = None  # fp32, fp16 or bf16: the floats a graph computes in
    kv_dtype: str | None = None  # int8: a quantised KV cache
    adapter: Path | None = None  # a LoRA adapter, merged into the weights
    evaluate: Path | None = None  # a text to measure the bundle on
    mixed_kl: float | None = None  # nats that the precision `mixed` may cost
    mixed_budget_bytes: int | None = None  # the most that the layers' weights of `mixed` may take


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a long job is: a stage's name and how much of the whole is done, 0 to 1."""

    stage: str
    fraction: float


@dataclass(frozen=True, slots=True)
class ExporterSpec:
    """Turns a source model into a bundle. Heavy imports happen inside `export`.

    `export` raises ExportError (or InstallError where its packages are missing) and leaves
    nothing behind when it fails; it returns the bundle's folder. `export_several` makes bundles
    that differ in precision from one load of one source, all of them or none; an exporter without
    it is called for each. `split` adds to a bundle the two halves of each of its graphs, cut behind
    so many layers; it raises ExportError where that cannot be.
    """

    name: str
    api_version: int
    summary: str
    precisions: tuple[str, ...]
    export: Callable[[ExportOptions, Callable[[Progress], None]], Path]
    export_several: (
        Callable[[Sequence[ExportOptions], Callable[[Progress], None]], list[Path]] | None
    ) = None
    split: Callable[[Path, int], object] | None = None


@hookspec
def twostroke_backends() -> Sequence[BackendSpec]:  # type: ignore[empty-body]
    """Answers the backends this plugin brings."""


@hookspec
def twostroke_exporters() -> Sequence[ExporterSpec]:  # type: ignore[empty-body]
    """Answers the exporters this plugin brings."""


@hookspec
def twostroke_parsers() -> Sequence[ParserSpec]:  # type: ignore[empty-body]
    """Answers the parsers of reasoning and calls that this plugin brings."""


@hookspec
def twostroke_surfaces() -> Sequence[Surface]:  # type: ignore[empty-body]
    """Answers the surfaces this plugin brings: other APIs that `twostroke serve` speaks."""
