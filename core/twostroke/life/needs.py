"""What an engine takes beside its KV cache, and what of the device's memory that leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twostroke.backends.capabilities import (
    FreeMemory,
    PacksBlocks,
    PacksWeights,
    SharesWeights,
    TellsFreeMemory,
)
from twostroke.backends.protocol import Backend
from twostroke.backends.split import graph_parts
from twostroke.bundle import Bundle
from twostroke.bundle.contract import LOGIT_INDEX
from twostroke.bundle.graph_header import read_header
from twostroke.errors import BundleError
from twostroke.life.bundle_weights import (
    loaded_bytes,
    mapped_table_bytes,
    stored_weights_bytes,
    widest_products,
)
from twostroke.life.free_memory import free_memory_bytes
from twostroke.life.resident import process_bytes
from twostroke.life.session_memory import kept_bytes
from twostroke.life.weights import MLAS_BLOCK_BYTES
from twostroke.life.workspace import plan_workspace
from twostroke.types import Stroke

_HEADROOM_SHARE = 10  # a tenth stays free, for what is not planned here


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on the device that decodes.

    `prefill_weights_bytes` and `decode_weights_bytes` are what each session adds: what both share
    counts to the first. `free_bytes` is what was free before, as `free_source` told; None: not
    known. `process_bytes` is what the process took before its first model; `scoring_bytes` what
    prompt log-probabilities take where a request asks for them: the logits of a chunk, twice.
    `mapped_table_bytes` of the weights are tables of which only the rows asked for are in memory.
    `kept_bytes` is what sessions hold on to once a row of the whole context was run.
    """

    prefill_weights_bytes: int = 0
    decode_weights_bytes: int = 0
    workspace_bytes: int = 0
    free_bytes: int | None = None
    process_bytes: int | None = None
    scoring_bytes: int = 0
    kept_bytes: int = 0
    free_source: str = ""
    mapped_table_bytes: int = 0

    @property
    def weights_bytes(self) -> int:
        """Of both strokes."""
        return self.prefill_weights_bytes + self.decode_weights_bytes

    @property
    def num_bytes(self) -> int:
        """Weights and workspace, at most."""
        return self.weights_bytes + self.workspace_bytes + self.scoring_bytes + self.kept_bytes

    @property
    def left_bytes(self) -> int:
        """What a KV cache may take where nobody says how much: all but the needs and a tenth."""
        free_bytes = free_memory_bytes() if self.free_bytes is None else self.free_bytes
        return max(0, free_bytes - self.num_bytes - free_bytes // _HEADROOM_SHARE)


def engine_needs(
    bundle: Bundle,
    graphs: Mapping[Stroke, Path],
    backends: Mapping[Stroke, Backend],
    *,
    context_tokens: int,
    chunk_tokens: int,
    num_rows: int,
) -> Needs:
    """What the two graphs take on the device that decodes. Reads their declarations only.

    Of a graph that is no ONNX file (a plugin's own format) the bytes on disk count.
    """
    device = backends[Stroke.DECODE].device
    is_host = device.kind == "cpu"
    vocab_size = bundle.manifest.architecture.vocab_size
    try:
        weights = _weights(graphs, backends, vocab_size, is_host=is_host)
        widest = widest_products(graphs[Stroke.PREFILL], vocab_size)
        always_kept = kept_bytes(graphs, backends) if is_host else 0
        answers_all = LOGIT_INDEX not in read_header(graphs[Stroke.PREFILL]).inputs
        tables = _mapped_tables(graphs, backends)
    except BundleError:
        tables = 0
        weights, widest = {Stroke.DECODE: stored_weights_bytes(bundle)}, ()
        always_kept, answers_all = 0, False
    workspace = plan_workspace(
        hidden_size=bundle.manifest.architecture.hidden_size,
        widest=widest,
        num_heads=bundle.manifest.architecture.num_heads,
        vocab_size=vocab_size,
        chunk_tokens=chunk_tokens,
        context_tokens=context_tokens,
        num_rows=num_rows,
        keeps_scores=is_host,
    )
    free = _free_memory(backends[Stroke.DECODE], is_host=is_host)
    return Needs(
        weights.get(Stroke.PREFILL, 0),
        weights.get(Stroke.DECODE, 0),
        # Other tools' graphs answer the logits of every position of a chunk.
        workspace.num_bytes + (chunk_tokens * vocab_size * 4 if answers_all else 0) + always_kept,
        free.num_bytes,
        process_bytes(),
        2 * min(chunk_tokens, context_tokens) * vocab_size * 4,
        free_source=free.source,
        mapped_table_bytes=tables,
    )


def _weights(
    graphs: Mapping[Stroke, Path],
    backends: Mapping[Stroke, Backend],
    vocab_size: int,
    *,
    is_host: bool,
) -> dict[Stroke, int]:
    """What each session adds on the host, or on the device that decodes.

    A graph that both strokes run on one backend is loaded once.
    """
    parts = [
        (stroke, part, backend)
        for stroke, path in graphs.items()
        for part, backend in graph_parts(path, backends[stroke])
        if (backend.device.kind == "cpu") == is_host
    ]
    added = dict.fromkeys(graphs, 0)
    for backend in {id(backend): backend for _, _, backend in parts}.values():
        loaded: dict[Path, Stroke] = {}  # what both strokes load counts to the first
        for stroke, part, owner in parts:
            if owner is backend:
                loaded.setdefault(part, stroke)
        sizes = loaded_bytes(
            loaded,
            vocab_size=vocab_size,
            packs=isinstance(backend, PacksWeights),
            shares=_shares_weights(backend),
            block_bytes=_block_bytes(backend),
        )
        for stroke, num_bytes in zip(loaded.values(), sizes, strict=True):
            added[stroke] += num_bytes
    return added


def _mapped_tables(graphs: Mapping[Stroke, Path], backends: Mapping[Stroke, Backend]) -> int:
    """Bytes of look-up tables in graphs whose backends map them from the bundle."""
    paths = [
        part
        for stroke, path in graphs.items()
        for part, backend in graph_parts(path, backends[stroke])
        if isinstance(backend, PacksWeights)
    ]
    return mapped_table_bytes(dict.fromkeys(paths))


def _block_bytes(backend: Backend) -> int:
    return backend.packed_block_bytes if isinstance(backend, PacksBlocks) else MLAS_BLOCK_BYTES


def _shares_weights(backend: Backend) -> bool:
    if isinstance(backend, PacksWeights):
        return backend.shares_packed_weights
    return isinstance(backend, SharesWeights) and backend.shares_weights


def _free_memory(backend: Backend, *, is_host: bool) -> FreeMemory:
    """What is free where a backend has its cache, as well as it is known."""
    device = backend.device
    if isinstance(backend, TellsFreeMemory) and not is_host:
        return backend.free_memory()
    if device.memory_bytes is not None and not is_host:
        return FreeMemory(device.memory_bytes, "all that the device has")
    return FreeMemory(free_memory_bytes(), "")
