"""What experts are given is recorded, and the model is left as it was."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from twostroke_export.balance import measure_rms
from twostroke_export.experts import expert_modules

IDS = [5, 17, 90, 3, 41, 8]
SIZES = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_hidden_layers": 1}


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss"])
def test_both_matrices_of_all_experts(make_model, model_type):
    model = AutoModelForCausalLM.from_pretrained(make_model(model_type, head_dim=16, **SIZES))
    (experts,) = expert_modules(model)
    calls = []
    hook = experts.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
    rms = measure_rms(model, IDS)
    hook.remove()
    assert "_apply_gate" not in vars(experts)
    states, chosen = calls[0][:2]
    inner = []
    for token, numbers in zip(states, chosen, strict=True):
        for number in numbers:
            matrix = experts.gate_up_proj[number]
            both = token @ matrix if experts.is_transposed else matrix @ token
            if experts.has_bias:
                both = both + experts.gate_up_proj_bias[number]
            inner.append(experts._apply_gate(both[None])[0])
    for parameter, given in (
        (experts.gate_up_proj, states),
        (experts.down_proj, torch.stack(inner)),
    ):
        expected = given.square().mean(0).sqrt()
        torch.testing.assert_close(rms[parameter.data_ptr()], expected, atol=1e-5, rtol=1e-4)
