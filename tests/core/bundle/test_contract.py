import pytest

from twostroke.bundle.contract import check_contract, past_names, present_names
from twostroke.errors import ContractError
from twostroke.types import Stroke

DECODE_INPUTS = {"input_ids", "seqlens_k", "total_sequence_length", *past_names(0)}
MASKED_INPUTS = {"input_ids", "attention_mask", *past_names(0)}
OUTPUTS = {"logits", *present_names(0)}


def test_graphs_of_the_contract_pass():
    check_contract("d.onnx", Stroke.DECODE, DECODE_INPUTS, OUTPUTS, 1)
    check_contract("d.onnx", Stroke.DECODE, DECODE_INPUTS | {"position_ids"}, OUTPUTS, 1)
    check_contract("p.onnx", Stroke.PREFILL, DECODE_INPUTS | {"logit_index"}, OUTPUTS, 1)
    check_contract("p.onnx", Stroke.PREFILL, MASKED_INPUTS, OUTPUTS, 1)


@pytest.mark.parametrize("extra", ["position_ids", "attention_mask", "use_cache_branch"])
def test_graphs_that_concatenate_need_no_lengths(extra):
    inputs = {"input_ids", extra, *past_names(0)}
    check_contract("d.onnx", Stroke.DECODE, inputs, OUTPUTS, 1, dialect="standard")
    inputs |= {"logit_index"}
    check_contract("p.onnx", Stroke.PREFILL, inputs, OUTPUTS, 1, dialect="standard")


def test_only_a_prefill_graph_may_start_from_nothing():
    check_contract("p.onnx", Stroke.PREFILL, {"input_ids"}, OUTPUTS, 1, dialect="standard")
    with pytest.raises(ContractError, match=r"lacks the input 'past_key_values\.0\.key'"):
        check_contract("d.onnx", Stroke.DECODE, {"input_ids"}, OUTPUTS, 1, dialect="standard")


def test_lengths_do_not_belong_into_the_standard_dialect():
    with pytest.raises(ContractError, match=r"standard dialect.*unknown input 'seqlens_k'"):
        check_contract("d.onnx", Stroke.DECODE, DECODE_INPUTS, OUTPUTS, 1, dialect="standard")


@pytest.mark.parametrize(
    ("stroke", "inputs", "outputs", "message"),
    [
        (Stroke.DECODE, DECODE_INPUTS | {"encoder_mask"}, OUTPUTS, "unknown input 'encoder_mask'"),
        (Stroke.DECODE, MASKED_INPUTS | {"use_cache_branch"}, OUTPUTS, "unknown input 'use_cache"),
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
