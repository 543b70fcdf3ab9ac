import pytest

from twostroke.bundle.contract import check_contract, past_names, present_names
from twostroke.errors import ContractError
from twostroke.types import Stroke

DECODE_INPUTS = {"input_ids", "seqlens_k", "total_sequence_length", *past_names(0)}
OUTPUTS = {"logits", *present_names(0)}


def test_graphs_of_the_contract_pass():
    check_contract("d.onnx", Stroke.DECODE, DECODE_INPUTS, OUTPUTS, 1)
    check_contract("d.onnx", Stroke.DECODE, DECODE_INPUTS | {"position_ids"}, OUTPUTS, 1)
    check_contract("p.onnx", Stroke.PREFILL, DECODE_INPUTS | {"logit_index"}, OUTPUTS, 1)


@pytest.mark.parametrize(
    ("stroke", "inputs", "outputs", "message"),
    [
        (Stroke.DECODE, DECODE_INPUTS | {"attention_mask"}, OUTPUTS, "unknown input 'attention_"),
        (Stroke.PREFILL, DECODE_INPUTS, OUTPUTS, "lacks the input 'logit_index'"),
        (Stroke.DECODE, DECODE_INPUTS - {"seqlens_k"}, OUTPUTS, "lacks the input 'seqlens_k'"),
        (Stroke.DECODE, DECODE_INPUTS, OUTPUTS - {"logits"}, "lacks the output 'logits'"),
        (Stroke.DECODE, DECODE_INPUTS, OUTPUTS | {"extra"}, "unknown output 'extra'"),
    ],
)
def test_other_graphs_are_refused_by_the_tensors_name(stroke, inputs, outputs, message):
    with pytest.raises(ContractError, match=message):
        check_contract("g.onnx", stroke, inputs, outputs, 1)


def test_many_faults_are_counted():
    with pytest.raises(ContractError, match="more"):
        check_contract("g.onnx", Stroke.DECODE, set(), set(), 4)
