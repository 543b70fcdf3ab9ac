from __future__ import annotations

import dataclasses
import json

import pytest

from twostroke.bundle import Bundle, open_bundle
from twostroke.bundle.manifest import Quantisation
from twostroke.engine import EngineLimits, build_engine
from twostroke.errors import BundleError, ConfigError, ContractError, OutOfMemoryError
from twostroke.testing.echo import EchoBackend, parse_options, probe
from twostroke.types import Stroke


@pytest.fixture
def backend():
    return EchoBackend(probe().devices[0], parse_options({}))


def changed_graph(bundle, tmp_path, name: str, **facts):
    """The bundle with one graph that says something else."""
    graph = tmp_path / name
    graph.write_text(json.dumps(json.loads((bundle / name).read_text()) | facts))
    opened = open_bundle(bundle)

    class Changed:
        manifest = opened.manifest

        def graph(self, stroke, dialect=None):
            path = opened.graph(stroke, dialect)
            return graph if path.name == name else path

    return Changed()


def test_an_engine_tells_its_plan_and_placement(echo_bundle, backend):
    limits = EngineLimits(max_rows=3, context_tokens=100, kv_budget_bytes=2**20)
    engine = build_engine(open_bundle(echo_bundle), backend, backend, limits)
    assert engine.context_tokens == 100
    assert engine.memory_plan.capacity_tokens == 104
    assert engine.memory_plan.kv_bytes_per_token == 2 * 2 * 2 * 4  # layers, sides, head_dim, fp32
    assert set(engine.placements) == {Stroke.PREFILL, Stroke.DECODE}
    engine.stop()


def test_two_backends_hold_the_cache_twice(echo_bundle, backend):
    other = EchoBackend(probe().devices[0], parse_options({}))
    limits = EngineLimits(kv_budget_bytes=2**20)
    engine = build_engine(open_bundle(echo_bundle), backend, other, limits)
    assert engine.memory_plan.kv_bytes_per_token == 64
    engine.stop()


def test_the_automatic_budget_is_enough_for_a_small_bundle(echo_bundle, backend):
    engine = build_engine(open_bundle(echo_bundle), backend, backend, EngineLimits())
    assert engine.stats().kv_tokens_total == 8 * 520
    engine.stop()


def test_bfloat16_is_refused_by_a_device_that_has_none(echo_bundle, backend):
    opened = open_bundle(echo_bundle)
    graphs = tuple(
        fact.model_copy(update={"quantisation": Quantisation(precision="bf16", activations=floats)})
        for fact, floats in zip(opened.manifest.graphs, ("float32", "bfloat16"), strict=True)
    )
    bundle = Bundle(opened.root, opened.manifest.model_copy(update={"graphs": graphs}))
    with pytest.raises(ContractError, match=r"decode\.onnx computes in bfloat16.*'echo'.*fp32"):
        build_engine(bundle, backend, backend, EngineLimits())
    assert backend.num_open_sessions == 0
    device = dataclasses.replace(backend.device, dtypes=frozenset())  # one that does not tell
    build_engine(bundle, *(2 * [EchoBackend(device, parse_options({}))]), EngineLimits()).stop()


def test_a_context_over_the_bundles_is_refused_with_both_numbers(echo_bundle, backend):
    with pytest.raises(ConfigError, match="is 513, the bundle 'echo' was exported for 512"):
        build_engine(open_bundle(echo_bundle), backend, backend, EngineLimits(context_tokens=513))
    assert backend.num_open_sessions == 0


def test_a_budget_under_one_row_is_refused_before_anything_is_opened(echo_bundle, backend):
    limits = EngineLimits(kv_budget_bytes=100 * 32)
    with pytest.raises(OutOfMemoryError, match="set context_tokens to 95 or less"):
        build_engine(open_bundle(echo_bundle), backend, backend, limits)
    assert backend.num_open_sessions == 0
    fits = EngineLimits(kv_budget_bytes=100 * 32, context_tokens=95)
    build_engine(open_bundle(echo_bundle), backend, backend, fits).stop()


def test_a_graph_with_an_unknown_layer_is_named_and_nothing_stays_open(
    echo_bundle, backend, tmp_path
):
    bundle = changed_graph(echo_bundle, tmp_path, "decode.onnx", num_layers=3)
    with pytest.raises(ContractError, match=r"decode\.onnx.*past_key_values\.2\.key"):
        build_engine(bundle, backend, backend, EngineLimits(kv_budget_bytes=2**20))
    assert backend.num_open_sessions == 0


def test_a_graph_of_another_geometry_is_named_and_nothing_stays_open(
    echo_bundle, backend, tmp_path
):
    bundle = changed_graph(echo_bundle, tmp_path, "decode.onnx", head_dim=4)
    with pytest.raises(ContractError, match=r"declares past_key_values\.0\.key as"):
        build_engine(bundle, backend, backend, EngineLimits(kv_budget_bytes=2**20))
    assert backend.num_open_sessions == 0


def test_a_broken_decode_graph_closes_the_prefill_session(echo_bundle, backend, tmp_path):
    bundle = changed_graph(echo_bundle, tmp_path, "decode.onnx", surprise=1)
    with pytest.raises(BundleError, match="is no echo graph"):
        build_engine(bundle, backend, backend, EngineLimits(kv_budget_bytes=2**20))
    assert backend.num_open_sessions == 0
