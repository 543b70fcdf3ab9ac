"""A graph of a bundle, loaded: its session, and what its declared tensors ask of the engine."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from twostroke.backends.capabilities import ReplaysRuns
from twostroke.backends.protocol import Backend, Session, TensorSpec
from twostroke.backends.reduced import INVERSE_TEMPERATURE, REDUCED_OUTPUTS, OpensDecode
from twostroke.bundle import Bundle
from twostroke.bundle.contract import (
    INPUT_IDS,
    LOGIT_INDEX,
    LOGITS,
    NUM_LOGITS_TO_KEEP,
    check_contract,
    past_names,
    present_names,
)
from twostroke.bundle.manifest import GraphFact, KVLayer, Manifest
from twostroke.errors import ContractError
from twostroke.types import Stroke


class LogitRows(enum.Enum):
    """Of which positions of a chunk a graph answers logits."""

    CHOSEN = "chosen"  # those of logit_index [batch, k]
    ONE = "one"  # the one of logit_index [batch]
    TAIL = "tail"  # the last num_logits_to_keep ones
    LAST = "last"  # the last, unasked
    ALL = "all"  # every one

    @property
    def may_be_several(self) -> bool:
        """Whether one run can answer more than one position."""
        return self in (LogitRows.CHOSEN, LogitRows.TAIL, LogitRows.ALL)


@dataclass(frozen=True, slots=True)
class OpenGraph:
    """A loaded graph. Two strokes that one file computes on one backend share it.

    `is_concatenating`: it answers a longer KV cache for each one it is given, instead of writing
    its tokens into it. `past` and `present` name keys and values in the layers' order; `past` is
    empty where the graph starts from nothing and can only read the first tokens of a prompt.
    """

    name: str
    backend: Backend
    session: Session
    fact: GraphFact
    past: tuple[str, ...]
    present: tuple[str, ...]
    logit_rows: LogitRows

    @property
    def is_concatenating(self) -> bool:
        """The layout of the KV cache; see the class."""
        return self.fact.dialect == "standard"

    @property
    def small_inputs(self) -> Mapping[str, TensorSpec]:
        """The declared inputs beside the KV cache."""
        past = set(self.past)
        return {name: spec for name, spec in self.session.inputs.items() if name not in past}

    @property
    def is_reducing(self) -> bool:
        """Whether it reduces its logits on the device; see `backends.reduced`."""
        return INVERSE_TEMPERATURE in self.session.inputs

    @property
    def keeps_logits(self) -> bool:
        """Whether its logits stay on the device: reduced there, or where no run copies them."""
        return self.is_reducing or self.replays_runs

    @property
    def replays_runs(self) -> bool:
        """Whether its runs are recorded and replayed; see `ReplaysRuns`."""
        return isinstance(self.session, ReplaysRuns) and self.session.replays_runs

    @property
    def takes_chunks(self) -> bool:
        """Whether one run may add several tokens to what a row holds."""
        return bool(self.past) and self.session.inputs[INPUT_IDS].shape[-1] != 1

    @property
    def kv_dtype(self) -> str:
        """The dtype of keys and values."""
        return self.session.outputs[self.present[0]].dtype

    @property
    def vocab_size(self) -> int | None:
        """The width of the logits, where the graph declares it."""
        declared = self.session.outputs[LOGITS].shape[-1]
        return declared if isinstance(declared, int) and declared > 0 else None


def open_graph(bundle: Bundle, backend: Backend, stroke: Stroke, dialect: str | None) -> OpenGraph:
    """Loads a stroke's graph and checks that the engine can feed it.

    Raises:
        BundleError: the bundle has no such graph, or it cannot be loaded.
        ContractError: a tensor that the engine does not know how to feed, or floats that the
            device does not compute in.
        PlacementError: from the backend.
    """
    path = bundle.graph(stroke, dialect)
    fact = bundle.manifest.graph(stroke, dialect)
    assert fact is not None  # bundle.graph would have raised
    _check_floats(path.name, backend, fact)
    session = _open_session(path, backend, stroke, fact)
    try:
        return _read(path.name, backend, session, fact, bundle.manifest)
    except BaseException:
        session.close()
        raise


def _open_session(path: Path, backend: Backend, stroke: Stroke, fact: GraphFact) -> Session:
    is_wanted = stroke is Stroke.DECODE and fact.dialect == "fused"
    if is_wanted and isinstance(backend, OpensDecode):
        return backend.open_decode_session(path)
    return backend.open_session(path, stroke)


def _check_floats(name: str, backend: Backend, fact: GraphFact) -> None:
    """Raises ContractError where a device that tells its dtypes has no bfloat16 for the graph.

    The other floats run everywhere, if not fast.
    """
    known = backend.device.dtypes
    if fact.quantisation.activations == "bfloat16" and known and "bfloat16" not in known:
        raise ContractError(
            f"{name} computes in bfloat16, for which the backend {backend.name!r} has no kernels "
            f"on {backend.device.name}. Run it on a device that has (CUDA on an NVIDIA GPU from "
            f"2020 on), or export the model in other floats, such as --precision fp32 or int8."
        )


def _read(
    name: str, backend: Backend, session: Session, fact: GraphFact, manifest: Manifest
) -> OpenGraph:
    layers = range(len(manifest.kv_layers))
    inputs = {n: spec for n, spec in session.inputs.items() if n != INVERSE_TEMPERATURE}
    outputs = {n: spec for n, spec in session.outputs.items() if n not in REDUCED_OUTPUTS}
    check_contract(name, fact.stroke, inputs, outputs, len(layers), dialect=fact.dialect)
    past = tuple(name for layer in layers for name in past_names(layer) if name in inputs)
    present = tuple(name for layer in layers for name in present_names(layer))
    graph = OpenGraph(name, backend, session, fact, past, present, _logit_rows(name, session))
    _check_geometry(graph, manifest)
    return graph


def _logit_rows(name: str, session: Session) -> LogitRows:
    logits = session.outputs[LOGITS].shape
    if len(logits) != 3:
        raise ContractError(
            f"{name} declares logits as {list(logits)}; the engine reads [batch, positions, "
            f"vocab]. Export the model again."
        )
    if LOGIT_INDEX in session.inputs:
        rank = len(session.inputs[LOGIT_INDEX].shape)
        return LogitRows.CHOSEN if rank == 2 else LogitRows.ONE
    if NUM_LOGITS_TO_KEEP in session.inputs:
        return LogitRows.TAIL
    is_last = logits[1] == 1 or session.inputs[INPUT_IDS].shape[-1] == 1
    return LogitRows.LAST if is_last else LogitRows.ALL


def _check_geometry(graph: OpenGraph, manifest: Manifest) -> None:
    """Raises ContractError where a graph fixes a dimension to something else than is bound."""
    declared = {name: graph.session.inputs[name] for name in graph.past}
    declared |= {name: graph.session.outputs[name] for name in graph.present}
    for layer, geometry in enumerate(manifest.kv_layers):
        for name in (*past_names(layer), *present_names(layer)):
            if name in declared and not _fits(declared[name].shape, geometry):
                raise ContractError(
                    f"{graph.name} declares {name} as {list(declared[name].shape)}, the engine "
                    f"would bind [batch, {geometry.num_kv_heads}, length, {geometry.head_dim}] as "
                    f"the manifest says. Export the model again."
                )


def _fits(shape: tuple[int | str, ...], layer: KVLayer) -> bool:
    if len(shape) != 4:
        return False
    _, num_heads, length, head_dim = shape
    pairs = ((num_heads, layer.num_kv_heads), (head_dim, layer.head_dim), (length, -1))
    return all(isinstance(have, str) or have in (want, -1) for have, want in pairs)
