"""The bundles that come with the kit, and what their logits must be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twostroke.backends.protocol import Array, BackendSpec
from twostroke.testing import echo
from twostroke.testing.bundles import make_echo_bundle
from twostroke.testing.echo_graph import echo_logits, read_graph
from twostroke.testing.onnx_bundles import make_onnx_bundle
from twostroke.testing.tiny_model import TinyModel, tiny_logits
from twostroke.types import TokenId

Reference = Callable[[Sequence[TokenId]], Array]
"""The logits that follow each of some tokens, [len(token_ids), vocab]."""

LONG_CONTEXT_TOKENS = 512
KV_DTYPES = {"fp32": "float32", "fp16": "float16"}
"""Of the graphs in a precision, which is also that of their weights."""


@dataclass(frozen=True, slots=True)
class KitBundle:
    """A bundle for the checks.

    `reference` None: the logits are compared with those of another backend. `long` is a bundle
    whose prompts take long enough to be interrupted; without one that is not checked.
    `is_portable` False: no other backend can read the graphs.
    """

    root: Path
    reference: Reference | None = None
    long: Path | None = None
    is_portable: bool = True


BundleMaker = Callable[[Path], KitBundle]
"""Writes a bundle into a folder that is the kit's own."""


def bundle_maker(spec: BackendSpec, precision: str) -> BundleMaker:
    """What the kit brings for a backend: ONNX graphs, and graphs of its own for the echo backend.

    `precision` is fp32, or fp16 for devices whose attention has no other.
    """
    if spec.open is echo.open_backend:
        return echo_bundle
    return functools.partial(
        tiny_bundle, kv_dtype={"fp32": "float32", "fp16": "float16"}[precision]
    )


def tiny_bundle(folder: Path, *, kv_dtype: str = "float32") -> KitBundle:
    """Tiny ONNX graphs in both dialects, with the answers of plain numpy for a reference.

    The long ones have more layers: a run can be ended between two operators only.
    """
    model = TinyModel(kv_dtype=kv_dtype, dialects=("fused", "standard"))
    long = TinyModel(
        num_layers=12,
        context_tokens=LONG_CONTEXT_TOKENS,
        kv_dtype=kv_dtype,
        dialects=("fused", "standard"),
    )
    return KitBundle(
        make_onnx_bundle(folder / "tiny", model),
        functools.partial(tiny_logits, model),
        make_onnx_bundle(folder / "long", long),
    )


def echo_bundle(folder: Path) -> KitBundle:
    """Graphs of the echo backend in both dialects."""
    root = make_echo_bundle(folder / "echo", position_ids=True, dialects=("fused", "standard"))
    graph = read_graph(root / "prefill.onnx")

    def reference(token_ids: Sequence[TokenId]) -> Array:
        history = np.asarray(token_ids, np.int64)
        return np.stack([echo_logits(graph, history[: n + 1]) for n in range(len(history))])

    long = make_echo_bundle(
        folder / "long",
        context_tokens=LONG_CONTEXT_TOKENS,
        position_ids=True,
        dialects=("fused", "standard"),
        read_delay_s_per_token=5e-5,
    )
    return KitBundle(root, reference, long, is_portable=False)
