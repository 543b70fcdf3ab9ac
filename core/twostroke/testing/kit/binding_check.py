"""A check of bindings: they are made once and run often, with inputs that change in between."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twostroke.backends.protocol import Binding, Buffer
from twostroke.bundle.contract import LOGITS
from twostroke.engine.bindings import stage_reduced
from twostroke.engine.kv_buffers import KVBuffers, present_of
from twostroke.engine.kv_concatenated import ConcatenatedKV
from twostroke.engine.kv_extent import Extent
from twostroke.engine.open_graph import OpenGraph, open_graph
from twostroke.engine.small_inputs import SmallInputs
from twostroke.testing.kit.checking import Check, require_close
from twostroke.testing.kit.rows import differs_by, in_each_setup
from twostroke.testing.kit.setups import Setup
from twostroke.testing.kit.subject import CONTEXT_TOKENS, Subject
from twostroke.types import Stroke

_TOKENS = (1, 5, 1)


class _Bound:
    """A binding of the decode graph to an empty row, with the buffers it reads and writes."""

    def __init__(self, subject: Subject, graph: OpenGraph, vocab_size: int, token: int) -> None:
        kind = ConcatenatedKV if graph.is_concatenating else KVBuffers
        kv = kind(
            subject.backend,
            subject.opened_bundle.manifest.kv_layers,
            graph.kv_dtype,
            Extent(1, CONTEXT_TOKENS),
        )
        if isinstance(kv, ConcatenatedKV):
            past, present = kv.past(0, 0), kv.present(1)
        else:
            past = present = kv.span(0, 1)
        dtype = graph.session.outputs[LOGITS].dtype
        self._logits: Buffer = subject.backend.allocate(
            (1, 1, vocab_size), dtype, on_host=not graph.keeps_logits
        )
        self._inputs = SmallInputs(graph, 1, 1, 1, 1, kv.extent.row_tokens)
        reduced = stage_reduced(graph, 1).buffers if graph.is_reducing else {}
        self._inputs.write([[token]], [0], (0,))
        self._binding: Binding = graph.session.bind(
            {**self._inputs.buffers, **past},
            {LOGITS: self._logits, **present_of(present), **reduced},
        )

    def run(self, token: int) -> npt.NDArray[np.float32]:
        """The logits after one token, [1, vocab]."""
        self._inputs.write([[token]], [0], (0,))
        self._binding.run()
        return self._logits.read()[:, 0].astype(np.float32)  # a copy


@in_each_setup
def _rewritten(subject: Subject, setup: Setup) -> dict[str, float]:
    dialect = setup.dialects[Stroke.DECODE]
    graph = open_graph(subject.opened_bundle, subject.backend, Stroke.DECODE, dialect)
    try:
        vocab_size = setup.runner.vocab_size
        bound = _Bound(subject, graph, vocab_size, _TOKENS[0])
        differences = []
        for number, token in enumerate(_TOKENS):
            expected = _Bound(subject, graph, vocab_size, token).run(token)
            what = f"run {number + 1} of one binding, with another token"
            differences.append(require_close(bound.run(token), expected, subject.tolerance, what))
        return differs_by(*differences)
    finally:
        graph.session.close()


BINDING_CHECKS = (
    Check("rewritten-inputs", "a binding reads what its inputs hold at each run", _rewritten),
)
