"""What the YAML asks of each stroke's precision and of the cache, and what a bundle holds."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from twostroke.bundle import Bundle, open_bundle
from twostroke.config.schema import ModelConfig
from twostroke.errors import ConfigError
from twostroke.model.precisions import check_precisions, export_options

from .conftest import OpenModel


def model(**settings: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "mine", "source": "org/name", **settings})


@pytest.fixture
def pair(echo_path) -> Bundle:
    """A bundle whose prefill says fp32 and whose decode says int4, with a cache in int8."""
    bundle = open_bundle(echo_path)
    prefill, decode = bundle.manifest.graphs
    quantisation = decode.quantisation.model_copy(update={"precision": "int4"})
    graphs = (
        prefill.model_copy(update={"kv_dtype": "int8"}),
        decode.model_copy(update={"kv_dtype": "int8", "quantisation": quantisation}),
    )
    manifest = bundle.manifest.model_copy(update={"graphs": graphs})
    return Bundle(bundle.root, manifest)


def test_an_export_is_asked_for_what_was_set_and_nothing_else() -> None:
    assert export_options(model()) == {}
    assert export_options(model(kv={"dtype": "float32"})) == {}
    asked = model(prefill={"precision": "fp16"}, decode={"precision": "int4"}, kv={"dtype": "int8"})
    assert export_options(asked) == {
        "prefill_precision": "fp16",
        "decode_precision": "int4",
        "kv_dtype": "int8",
    }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefill": {"precision": "fp32"}, "decode": {"precision": "int4"}},
        {"precision": "int4", "prefill": {"precision": "fp32"}},
        {"kv": {"dtype": "int8"}},
    ],
)
def test_a_bundle_that_holds_what_is_asked_is_taken_in_silence(
    pair: Bundle, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_precisions(pair, model(**settings))
    assert not caplog.records


def test_a_bundle_that_lacks_something_is_refused_with_what_it_holds(pair: Bundle) -> None:
    asked = model(
        prefill={"precision": "int8"}, decode={"precision": "fp32"}, kv={"dtype": "float16"}
    )
    with pytest.raises(ConfigError) as refused:
        check_precisions(pair, asked)
    told = str(refused.value)
    for words in (
        "prefill.precision is int8",
        "holds prefill in fp32",
        "--prefill-precision int8",
        "decode.precision is fp32",
        "holds decode in int4",
        "kv.dtype is float16",
        "in int8",
        "--activations fp16",
    ):
        assert words in told


def test_opening_a_model_compares_them(open_model: OpenModel) -> None:
    open_model(prefill={"precision": "fp32"}, kv={"dtype": "float32"})
    with pytest.raises(ConfigError, match=r"decode\.precision is int4.*holds decode in fp32"):
        open_model(decode={"precision": "int4"})


def test_two_precisions_are_named_as_one() -> None:
    assert model(precision="int4").both_precisions == "int4"
    assert model(precision="int4", prefill={"precision": "fp16"}).both_precisions == "fp16/int4"


def test_the_models_own_precision_is_only_told_of(
    pair: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_precisions(pair, model(precision="int4"))
    assert "precision is set to int4" in caplog.text
    assert "is fp32/int4 and stays so" in caplog.text
