import pytest

from twostroke.errors import RequestError
from twostroke.server.fields import SamplingFields, check_shape, field_path
from twostroke.server.surfaces.openai.completions import prompts_of
from twostroke.server.surfaces.openai.unsupported import refuse_unsupported
from twostroke.server.surfaces.plain.generate import GenerateBody, preferred


def refusal(shape, body):
    with pytest.raises(RequestError) as caught:
        check_shape(shape, body)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_tokens", True, "max_tokens must be a valid integer, not true."),
        ("max_tokens", "5", "max_tokens must be a valid integer, not the string '5'."),
        ("max_tokens", 5.0, "max_tokens must be a valid integer, not 5.0."),
        ("max_tokens", [5], "max_tokens must be a valid integer, not a list."),
        ("temperature", "warm", "temperature must be a valid number, not the string 'warm'."),
        ("temperature", False, "temperature must be a valid number, not false."),
        ("temperature", {}, "temperature must be a valid number, not an object."),
        ("seed", 1.5, "seed must be a valid integer, not 1.5."),
        ("ignore_eos", 1, "ignore_eos must be a valid boolean, not 1."),
        ("logit_bias", {"1": "2"}, "must be a valid number, not the string '2'."),
        ("logit_bias", [1], "logit_bias must be a valid dictionary, not a list."),
    ],
)
def test_a_wrong_type_is_named_with_what_was_expected(field, value, expected):
    error = refusal(SamplingFields, {field: value})
    assert expected in str(error)
    assert error.param.startswith(field)


def test_a_huge_number_is_refused_without_repeating_it():
    error = refusal(SamplingFields, {"max_tokens": 10**4000})
    assert "less than" in str(error)
    assert len(str(error)) < 200


def test_a_long_string_is_not_repeated():
    assert "a long string" in str(refusal(SamplingFields, {"seed": "secret " * 100}))


def test_several_mistakes_are_counted():
    error = refusal(SamplingFields, {"seed": "a", "top_k": "b", "top_p": "c"})
    assert str(error).endswith("(2 more fields are wrong.)")


def test_what_is_null_was_not_given():
    given = {"max_tokens": None, "stop": None, "logit_bias": None, "temperature": 0}
    assert check_shape(SamplingFields, given).sampling() == {"temperature": 0.0}


def test_fields_arrive_by_the_names_of_sampling_params():
    body = {"max_completion_tokens": 3, "stop": "x", "logit_bias": {"7": -1}, "seed": 1}
    assert check_shape(SamplingFields, body).sampling() == {
        "max_tokens": 3,
        "stop": "x",
        "logit_bias": {"7": -1.0},
        "seed": 1,
    }


def test_both_names_of_max_tokens_must_agree():
    agreeing = SamplingFields(max_tokens=3, max_completion_tokens=3)
    assert agreeing.sampling() == {"max_tokens": 3}
    with pytest.raises(RequestError, match="max_tokens is 3 but max_completion_tokens is 4"):
        SamplingFields(max_tokens=3, max_completion_tokens=4).sampling()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("temprature", "temperature"), ("max_new_tokens", "max_tokens"), ("top-k", "top_k")],
)
def test_generate_names_the_nearest_field(name, nearest):
    error = refusal(GenerateBody, {"prompt": "hi", name: 1})
    assert f"did you mean {nearest!r}?" in str(error)
    assert error.param == name


def test_generate_lists_its_fields_where_none_is_near():
    error = refusal(GenerateBody, {"zzz": 1})
    assert str(error).startswith("'zzz' is not a field of this request. Known are chat_template_k")


def test_generate_names_every_unknown_field():
    error = refusal(GenerateBody, {"prompt": "hi", "temprature": 1, "user": "me", "best_of": 1})
    start = "'temprature' (did you mean 'temperature'?), 'user' and 'best_of' are not fields of"
    start += " this"
    assert str(error).startswith(start)
    assert error.param == "temprature"
    many = refusal(GenerateBody, {f"zzz{number}": 1 for number in range(1000)})
    assert " and 992 more are not fields" in str(many)


def test_one_more_mistake_is_one():
    error = refusal(GenerateBody, {"seed": "a", "zzz": 1})
    assert str(error).startswith("'zzz' is not a field")
    assert str(error).endswith("(1 more field is wrong.)")


def test_values_are_written_as_in_json():
    with pytest.raises(RequestError, match="only false is taken"):
        refuse_unsupported({"echo": True})
    with pytest.raises(RequestError, match='only "none" or "auto" is taken'):
        refuse_unsupported({"tool_choice": "required"})


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{}]}])
def test_generate_takes_a_prompt_or_messages(body):
    with pytest.raises(RequestError, match="either a prompt or messages"):
        check_shape(GenerateBody, body).source()


def test_paths_are_written_as_in_javascript():
    assert field_path(("messages", 0, "content", 2, "text")) == "messages[0].content[2].text"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ("", [""]),
        ([1, 2], [[1, 2]]),
        ([], [[]]),
        (["a"], ["a"]),
        ([[1, 2]], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_a_completion_takes_one_prompt_or_several(prompt, expected):
    assert prompts_of(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "expected", "param"),
    [
        (None, "prompt is missing", "prompt"),
        (3, "prompt must be a string, a list of token ids, or a list", "prompt"),
        ({"a": 1}, "prompt must be a string, a list of token ids, or a list", "prompt"),
        ([1, True], r"prompt\[0\] must be a string or a list of token ids", "prompt[0]"),
        ([1.0], r"prompt\[0\] must be a string or a list of token ids", "prompt[0]"),
        (["a", ["a"]], r"prompt\[1\] must be a string or a list of token ids", "prompt[1]"),
        (["a", None], r"prompt\[1\] must be a string or a list of token ids", "prompt[1]"),
    ],
)
def test_other_prompts_are_refused(prompt, expected, param):
    with pytest.raises(RequestError, match=expected) as caught:
        prompts_of(prompt)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", True),
        ("best_of", 3),
        ("echo", True),
        ("logprobs", True),
        ("logprobs", 1),
        ("logprobs", 0),  # asks for the logprobs of the sampled tokens
        ("top_logprobs", 5),
        ("suffix", "end"),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("grammar", "root ::= [a-z]+"),
        ("guided_decoding_backend", "outlines"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("chat_template", "{{ 1 }}"),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("truncate_prompt_tokens", 100),
        ("skip_special_tokens", False),
        ("include_stop_str_in_output", True),
        ("max_new_tokens", 5),
        ("repeat_penalty", 1.3),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(field, value):
    with pytest.raises(RequestError, match=f"{field} is not supported") as caught:
        refuse_unsupported({field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    "body",
    [
        {"n": 1, "best_of": 1, "echo": False, "logprobs": False, "suffix": None},
        {"tools": [], "tool_choice": "auto", "grammar": ""},
        {"skip_special_tokens": True, "repeat_penalty": 1.0, "length_penalty": 1, "n_predict": -1},
        {"user": "me", "store": True, "metadata": {}, "reasoning_effort": "low", "logprobs": None},
    ],
)
def test_fields_that_change_nothing_pass(body):
    refuse_unsupported(body)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/html, */*;q=0.8", "text/plain"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("application/json;q=0.2, application/x-ndjson;q=0.9", "application/x-ndjson"),
        ("application/json;q=0, text/plain", "text/plain"),
        ("application/json;q=broken", "text/plain"),
        ("application/json, application/x-ndjson", "application/json"),
    ],
)
def test_the_accept_header_chooses_the_form(accept, expected):
    assert preferred(accept) == expected
