"""Is the GPU's fused attention right? One small product of it against the formula in numpy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from twostroke.backends.ort import onnxruntime
from twostroke.backends.protocol import Array
from twostroke.bundle import onnx_wire

_NUM_PAST, _HEAD_DIM = 20, 16


def attention_error(num_new: int, provider: str, options: Mapping[str, str]) -> float:
    """The largest difference of GroupQueryAttention for `num_new` tokens behind 20 others.

    Keys and values are random normal ones, so a right answer is exact to about 1e-6.
    """
    return _attention_error(num_new, provider, tuple(sorted(options.items())))


@functools.cache
def _attention_error(num_new: int, provider: str, options: tuple[tuple[str, str], ...]) -> float:
    runtime = onnxruntime()
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3
    session = runtime.InferenceSession(
        _graph(), settings, providers=[(provider, dict(options))], enable_fallback=0
    )
    feeds = _feeds(num_new)
    (found,) = session.run(["y"], feeds)
    return float(np.abs(found - expected(feeds)).max())


def expected(feeds: Mapping[str, Array]) -> Array:
    """Causal attention of one head, [1, new, head_dim] (Vaswani et al. 2017)."""
    keys = np.concatenate([feeds["past_k"][0, 0], feeds["k"][0]])  # [past + new, head_dim]
    values = np.concatenate([feeds["past_v"][0, 0], feeds["v"][0]])
    num_new, num_all = feeds["q"].shape[1], len(keys)
    scores = feeds["q"][0] @ keys.T / np.sqrt(_HEAD_DIM)  # [new, past + new]
    seen = np.arange(num_all)[None] <= np.arange(num_all - num_new, num_all)[:, None]
    weights = np.where(seen, np.exp(scores - scores.max()), 0.0)
    answer: Array = (weights / weights.sum(axis=1, keepdims=True)) @ values
    return answer[None]


def _feeds(num_new: int) -> dict[str, Array]:
    random = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    new, past = (1, num_new, _HEAD_DIM), (1, 1, _NUM_PAST, _HEAD_DIM)
    return {
        **{name: normal(*new) for name in ("q", "k", "v")},
        **{name: normal(*past) for name in ("past_k", "past_v")},
        "seqlens_k": np.array([_NUM_PAST + num_new - 1], np.int32),
        "total": np.array(_NUM_PAST + num_new, np.int32),
    }


def _graph() -> bytes:
    """An .onnx file: one GroupQueryAttention of one head."""
    inputs = ["q", "k", "v", "past_k", "past_v", "seqlens_k", "total"]
    outputs = ["y", "present_k", "present_v"]
    node = onnx_wire.node(
        "GroupQueryAttention", inputs, outputs, "com.microsoft", num_heads=1, kv_num_heads=1
    )

    def declared(name: str) -> bytes:
        shapes: dict[str, tuple[int | str, ...]] = {"seqlens_k": (1,), "total": ()}
        rows: tuple[int | str, ...] = (1, "new", _HEAD_DIM)
        caches: tuple[int | str, ...] = (1, 1, "past" if name in inputs else "all", _HEAD_DIM)
        shape = shapes.get(name, caches if "_" in name else rows)
        return onnx_wire.value_info(name, "int32" if name in shapes else "float32", shape)

    made: Any = onnx_wire.model(
        "attention",
        [node],
        [declared(name) for name in inputs],
        [declared(name) for name in outputs],
        [],
        {"": 21, "com.microsoft": 1},
    )
    return bytes(made)
