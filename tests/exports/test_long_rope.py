"""A context beyond the original length takes the long factors at every position."""

from __future__ import annotations

import pytest
import torch
import transformers

from twostroke.errors import ExportError
from twostroke_export.long_rope import use_long_factors
from twostroke_export.observe import observe

ORIGINAL, FACTORS = 8, 8
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}


def tiny(model_type: str = "phi3", **changes: object) -> transformers.PreTrainedModel:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * FACTORS,
        "long_factor": [2.0 + i for i in range(FACTORS)],
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "short_mscale": 1.1,
        "long_mscale": 1.3,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": ORIGINAL}
    config = transformers.AutoConfig.for_model(
        model_type, rope_parameters=rope, **SIZES, **heads, **lengths, **changes
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def logits(model: transformers.PreTrainedModel, num_tokens: int) -> torch.Tensor:
    ids = torch.arange(num_tokens)[None] + 3
    return model(input_ids=ids, use_cache=False).logits[0]


@pytest.mark.parametrize("model_type", ["phi3", "phimoe"])
def test_a_short_sequence_is_turned_like_the_beginning_of_a_long_one(model_type):
    changes = {"num_local_experts": 2} if model_type == "phimoe" else {}
    model = tiny(model_type, **changes)
    long, short = logits(model, ORIGINAL + 4), logits(model, 5)
    assert not torch.allclose(short, long[:5], atol=1e-4)
    use_long_factors(model, ORIGINAL)
    assert torch.allclose(logits(model, 5), long[:5], atol=1e-5)
    assert torch.allclose(logits(model, ORIGINAL + 4), long, atol=1e-5)


def test_the_caches_hold_the_long_factors():
    model = tiny()
    short, _ = observe(model).rotary.layers[0].caches(4, 4)
    long, _ = observe(model).rotary.layers[0].caches(ORIGINAL + 4, ORIGINAL + 4)
    use_long_factors(model, ORIGINAL)
    mine, _ = observe(model).rotary.layers[0].caches(4, 4)
    assert torch.equal(mine, long[:4])
    assert not torch.allclose(mine, short)


def test_a_model_without_rotary_modules_is_refused():
    model = torch.nn.Linear(1, 1)
    model.config = transformers.GPT2Config()
    with pytest.raises(ExportError, match=r"'gpt2' has long rope but no rotary module.*at most 8"):
        use_long_factors(model, ORIGINAL)
