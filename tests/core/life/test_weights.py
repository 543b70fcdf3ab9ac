from __future__ import annotations

import pytest

from twostroke.bundle.manifest import KVLayer
from twostroke.life.bundle_weights import (
    loaded_bytes,
    mapped_table_bytes,
    weigh_graph,
    widest_products,
)
from twostroke.life.shape import ModelShape
from twostroke.life.weights import Matrices, weigh
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle


def shape(**changes) -> ModelShape:
    given = {
        "model_type": "llama",
        "context_tokens": 128,
        "vocab_size": 1000,
        "hidden_size": 64,
        "num_heads": 4,
        "layers": (KVLayer(num_kv_heads=2, head_dim=16),) * 2,
        "windows": (None, None),
        "ffn_size": 96,
        "is_gated": True,
        "is_tied": True,
        "num_dense": 2,
    }
    return ModelShape(**(given | changes))


@pytest.mark.parametrize(
    ("precision", "stored", "packed"),
    [
        ("fp32", 4 * 3200, 4 * 3200),
        ("fp16", 2 * 3200, 4 * 3200),  # the CPU widens halves
        ("int8", 64 * 2 * (32 + 4), 64 * 2 * (32 + 8)),  # 50 columns are two blocks of 32
        ("int4", 64 * (2 * (16 + 4) + 1), 64 * 2 * (16 + 8)),
    ],
)
def test_a_matrix_in_each_precision(precision, stored, packed):
    weights = weigh([Matrices("layer", 64, 50)], precision)
    assert (weights.stored_bytes, weights.packed_bytes) == (stored, packed)
    assert (weights.in_place_bytes, weights.step_bytes) == (0, packed)
    assert weigh([Matrices("layer", 64, 50)], precision, packs=False).loaded_bytes == stored


def test_small_matrices_routers_and_vectors_stay_floats():
    for group in (Matrices("layer", 31, 64), Matrices("router", 64, 64), Matrices("vector", 1, 99)):
        assert weigh([group], "int4").stored_bytes == 4 * group.num_parameters


def test_a_tied_head_is_stored_once_and_read_in_place_beside_its_packed_copy():
    tied, apart = (
        weigh(shape(is_tied=flag).matrices(128), "int8", packs=True) for flag in (True, False)
    )
    head = 1000 * 2 * (32 + 4)
    assert apart.stored_bytes - tied.stored_bytes == head
    assert apart.loaded_bytes == tied.loaded_bytes
    assert tied.num_head == apart.num_head == 64_000


def test_tables_of_angles_take_bytes_and_are_no_parameters():
    short, long = (weigh(shape().matrices(n), "int8") for n in (8, 128))
    assert long.num_parameters == short.num_parameters
    assert long.stored_bytes - short.stored_bytes == 120 * 8 * 2 * 4


def test_a_step_reads_the_experts_that_its_rows_choose():
    mixture = shape(num_experts=8, num_active_experts=2, expert_size=32, num_dense=0)
    weights = weigh(mixture.matrices(128), "fp32")
    experts = 2 * 8 * 3 * 64 * 32  # layers, experts, gate and up and down
    assert weights.num_parameters - weights.num_active == experts * 6 // 8
    assert weights.read_bytes(1) == weights.step_bytes + 4 * experts * 2 / 8
    assert weights.read_bytes(2) == pytest.approx(
        weights.step_bytes + 4 * experts * (1 - (6 / 8) ** 2)
    )
    assert weights.read_bytes(10**4) == weights.step_bytes + weights.expert_bytes


def test_without_experts_every_row_reads_the_same():
    weights = weigh(shape().matrices(128), "fp32")
    assert weights.read_bytes(1) == weights.read_bytes(50) == weights.step_bytes


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    model = TinyModel()
    folder = make_onnx_bundle(tmp_path_factory.mktemp("weights") / "bundle", model)
    return folder, model


def test_a_graph_tells_what_its_config_would(bundle):
    folder, model = bundle
    found = weigh_graph(folder / "decode.onnx", vocab_size=model.vocab_size)
    layer = 64 * (64 + 32 + 32 + 64) + 2 * 64 * 128
    head = 64 * model.vocab_size
    assert found.num_multiplied == 2 * layer
    assert found.num_head == head
    assert found.packed_bytes == 4 * (2 * layer + head)
    tables = 4 * 2 * (256 + 16) * 8
    assert found.in_place_bytes - 4 * head == pytest.approx(tables, abs=64)
    assert found.step_bytes == pytest.approx(found.packed_bytes, abs=64)
    assert widest_products(folder / "decode.onnx", model.vocab_size) == (128, 64)


def test_sessions_share_what_is_packed_or_keep_their_own(bundle):
    folder, model = bundle
    paths = [folder / "prefill.onnx", folder / "decode.onnx"]

    def loaded(**flags):
        return loaded_bytes(paths, vocab_size=model.vocab_size, **flags)

    one = weigh_graph(paths[1], vocab_size=model.vocab_size)
    first, second = loaded(packs=True, shares=True)
    assert first == pytest.approx(one.loaded_bytes, abs=64)
    assert second <= 64  # nothing but inline constants
    first, second = loaded(packs=True, shares=False)
    assert second == pytest.approx(one.packed_bytes, abs=64)
    plain = weigh_graph(paths[1], vocab_size=model.vocab_size, packs=False)
    assert loaded(packs=False, shares=False) == pytest.approx((plain.stored_bytes,) * 2, abs=64)


def test_tables_that_are_looked_up_count_once_for_both_strokes(bundle):
    folder, model = bundle
    paths = [folder / "prefill.onnx", folder / "decode.onnx"]
    assert mapped_table_bytes(paths) == mapped_table_bytes(paths[:1])
    assert mapped_table_bytes(paths) == 4 * 64 * model.vocab_size
