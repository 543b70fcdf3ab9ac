"""The rotation that GroupQueryAttention performs, and the caches it is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama
from transformers.models.phi3 import modeling_phi3

from twostroke_export.rotary import LayerRotary, halved, rotate


def angles(positions: int, width: int) -> torch.Tensor:
    frequencies = 100.0 ** (-torch.arange(width) / width)
    return torch.arange(positions)[:, None] * frequencies  # [positions, width]


@pytest.mark.parametrize(
    ("apply", "is_interleaved", "width"),
    [
        (modeling_llama.apply_rotary_pos_emb, False, 8),
        (modeling_phi3.apply_rotary_pos_emb, False, 4),  # the first half of a head
        (modeling_glm.apply_rotary_pos_emb, True, 8),
        (modeling_glm.apply_rotary_pos_emb, True, 4),
    ],
)
def test_equals_transformers(apply, is_interleaved, width):
    states, angle = torch.randn(1, 2, 5, 16), angles(5, width)
    doubled = torch.cat((angle, angle), -1)[None]
    expected, _ = apply(states, states, doubled.cos(), doubled.sin())
    mine = rotate(states, angle.cos(), angle.sin(), is_interleaved)
    assert torch.allclose(mine, expected, atol=1e-6)


def test_halves_keep_each_frequency_once():
    frequencies = torch.arange(4.0)
    assert halved(torch.cat((frequencies, frequencies)), 1).tolist() == [0, 1, 2, 3]
    assert halved(frequencies.repeat_interleave(2), 2).tolist() == [0, 1, 2, 3]


def test_caches_repeat_the_recorded_call_at_all_positions():
    def module(states, position_ids, kind):
        assert kind == "local"
        assert states is hidden
        angle = position_ids[..., None] * torch.ones(8)
        return angle.cos(), angle.sin()

    hidden = torch.zeros(1, 2, 3)
    call = (module, (hidden, torch.arange(2)[None], "local"), {})
    cos, sin = LayerRotary(call, is_interleaved=False, stride=1).caches(7, 9)
    assert cos.shape == sin.shape == (9, 4)
    positions = [*range(7), 6, 6]
    assert np.allclose(cos[:, 0], np.cos(positions), atol=1e-6)
    assert np.allclose(sin[:, 3], np.sin(positions), atol=1e-6)


def test_rows_behind_the_context_do_not_stretch_the_angles():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=32)
    config.rope_parameters = rope
    module = modeling_llama.LlamaRotaryEmbedding(config)
    call = (module, (torch.zeros(1, 2, 64), torch.arange(2)[None]), {})
    rotary = LayerRotary(call, is_interleaved=False, stride=1)
    inside, _ = rotary.caches(32, 32)
    padded, _ = rotary.caches(32, 40)
    stretched, _ = rotary.caches(40, 40)
    assert torch.equal(padded[:32], inside)
    assert not torch.allclose(stretched[:32], inside)
