"""The module that is traced: the model behind the flat inputs of the graph contract."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from twostroke.life.memory import kv_capacity
from twostroke_export.attention import KVState, caching
from twostroke_export.observe import Observed
from twostroke_export.rotary import LayerRotary, Rotation


class StrokeModule(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """The model behind the flat inputs of the graph contract.

    Its forward takes input_ids [batch, sequence] int64, position_ids likewise, seqlens_k [batch]
    int32, total_sequence_length [] int32, logit_index [batch, k] int64 (None in decode) and past, a
    flat list of key and value for each layer; it gives logits [batch, k, vocab] float32 and the
    present tensors, flat likewise.
    """

    def __init__(self, model: Any, observed: Observed, context_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.context_tokens = context_tokens
        layers = observed.rotary.layers if observed.rotary is not None else ()
        self.rotaries: list[LayerRotary | None] = [*layers] or [None] * len(observed.layers)
        self.cache_names: dict[int, tuple[str, str]] = {}
        dtype = next(model.parameters()).dtype
        for rotary in self.rotaries:
            if rotary is None or id(rotary) in self.cache_names:
                continue
            names = (f"cos_cache_{len(self.cache_names)}", f"sin_cache_{len(self.cache_names)}")
            self.cache_names[id(rotary)] = names
            # The engine writes one token past the context where a row must not decode.
            caches = rotary.caches(context_tokens, kv_capacity(context_tokens))
            for name, cache in zip(names, caches, strict=True):
                self.register_buffer(name, cache.to(dtype))

    def _rotation(self, rotary: LayerRotary | None) -> Rotation | None:
        if rotary is None:
            return None
        cos, sin = self.cache_names[id(rotary)]
        return Rotation(getattr(self, cos), getattr(self, sin), rotary.is_interleaved)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        seqlens_k: torch.Tensor,
        total_sequence_length: torch.Tensor,
        logit_index: torch.Tensor | None,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """See the class."""
        # Idle rows are fed positions one past the context; learned embeddings end with it.
        position_ids = position_ids.clamp(max=self.context_tokens - 1)
        state = KVState(
            past=list(zip(past[::2], past[1::2], strict=True)),
            seqlens_k=seqlens_k,
            total_sequence_length=total_sequence_length,
            position_ids=position_ids,
            rotations=[self._rotation(rotary) for rotary in self.rotaries],
        )
        with caching(state), last_rows(self.model, logit_index):
            output = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False)
        present = [side for layer in state.present for side in layer]
        return (output.logits.float(), *present)


@contextlib.contextmanager
def last_rows(model: Any, logit_index: torch.Tensor | None) -> Iterator[None]:
    """Hands the head the wanted rows: hidden [batch, sequence, size] -> [batch, k, size]."""
    if logit_index is None:
        yield
        return
    head = model.get_output_embeddings()

    def gather(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        hidden = args[0]
        rows: torch.Tensor = torch.onnx.ops.symbolic(
            "GatherND",
            (hidden, logit_index.unsqueeze(2)),  # [batch, k, 1]
            {"batch_dims": 1},
            dtype=hidden.dtype,
            shape=(*logit_index.shape, hidden.shape[2]),
            version=13,
        )
        return (rows,)

    hook = head.register_forward_pre_hook(gather)
    try:
        yield
    finally:
        hook.remove()
