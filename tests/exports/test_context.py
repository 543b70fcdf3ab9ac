"""How long a context an export gets."""

from __future__ import annotations

import pytest
from transformers import BloomConfig, GPT2Config, LlamaConfig, Phi3Config

from twostroke.errors import ExportError
from twostroke_export.context import context_limit, effective_context
from twostroke_export.long_rope import original_length


@pytest.mark.parametrize(("asked", "given"), [(None, 512), (512, 512), (7, 7)])
def test_the_smaller_of_asked_and_possible(asked, given):
    assert effective_context("mine", 512, asked) == given


def test_more_than_possible_names_both_numbers():
    with pytest.raises(ExportError, match="513 tokens was asked for, but mine is limited to 512"):
        effective_context("mine", 512, 513)


@pytest.mark.parametrize("asked", [1, 0, -5])
def test_too_few_tokens(asked):
    with pytest.raises(ExportError, match="too small"):
        effective_context("mine", 512, asked)


def test_other_names_of_the_limit():
    assert context_limit(LlamaConfig(max_position_embeddings=512)) == 512
    assert context_limit(GPT2Config(n_positions=333)) == 333


def test_long_rope_goes_beyond_its_original_length_only_where_asked():
    half = [1.0] * 48
    config = Phi3Config(
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": half,
            "long_factor": half,
            "original_max_position_embeddings": 4096,
        },
    )
    assert (context_limit(config), original_length(config)) == (131072, 4096)
    assert effective_context("mine", 131072, None, 4096) == 4096
    assert effective_context("mine", 131072, 10_000, 4096) == 10_000
    assert original_length(LlamaConfig()) is None


def test_no_limit_at_all():
    assert context_limit(BloomConfig()) is None
    assert effective_context("mine", None, 100_000) == 100_000
    assert effective_context("mine", None, None) == 4096
