"""The rotation that GroupQueryAttention performs, and the caches it is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama
from transformers.models.phi3 import modeling_phi3

from twostroke_export.rotary import Frequencies, LayerRotary, Rotation, rotate


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


def test_each_frequency_is_taken_once():
    frequencies = torch.arange(4.0)
    for how, cosines in (
        (Frequencies.FIRST_HALF, torch.cat((frequencies, frequencies))),
        (Frequencies.EVERY_SECOND, frequencies.repeat_interleave(2)),
        (Frequencies.WHOLE, frequencies),
    ):
        assert how.once(cosines).tolist() == [0, 1, 2, 3]


def rotary(call, head_dim: int = 16, *, is_interleaved: bool = False) -> LayerRotary:
    return LayerRotary(call, is_interleaved, Frequencies.FIRST_HALF, head_dim)


def test_caches_repeat_the_recorded_call_at_all_positions():
    def module(states, position_ids, kind):
        assert kind == "local"
        assert states is hidden
        angle = position_ids[..., None] * torch.ones(8)
        return angle.cos(), angle.sin()

    hidden = torch.zeros(1, 2, 3)
    call = (module, (hidden, torch.arange(2)[None], "local"), {})
    cos, sin = rotary(call).caches(7, 9)
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
    inside, _ = rotary(call).caches(32, 32)
    padded, _ = rotary(call).caches(32, 40)
    stretched, _ = rotary(call).caches(40, 40)
    assert torch.equal(padded[:32], inside)
    assert not torch.allclose(stretched[:32], inside)


@pytest.mark.parametrize(
    ("is_interleaved", "head_dim", "width"), [(True, 16, 8), (True, 12, 4), (False, 16, 4)]
)
def test_narrow_pairs_are_widened_where_that_changes_nothing(is_interleaved, head_dim, width):
    angle = angles(5, 4)
    call = (
        lambda _: tuple(torch.cat((side, side), -1)[None] for side in (angle.cos(), angle.sin())),
        (torch.arange(5)[None],),
        {},
    )
    cos, sin = rotary(call, head_dim, is_interleaved=is_interleaved).caches(5, 5)
    assert cos.shape == sin.shape == (5, width)
    assert Rotation(cos, sin, is_interleaved).fits_attention is (width == 8)
    states = torch.randn(1, 2, 5, head_dim)
    expected = rotate(states, angle.cos(), angle.sin(), is_interleaved)
    assert torch.equal(rotate(states, cos, sin, is_interleaved), expected)
