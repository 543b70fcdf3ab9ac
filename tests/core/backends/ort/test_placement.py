from __future__ import annotations

import pytest

from twostroke.backends.ort import CPU_PROVIDER, count_placement, is_heavy, prove_placement
from twostroke.errors import PlacementError

CUDA = "CUDAExecutionProvider"


def prove(*assigned: tuple[str, str], requested: str = CUDA) -> None:
    placement = count_placement(assigned, requested)
    prove_placement(placement, "decode.onnx", "cuda", "See `twostroke doctor`.")


def test_nodes_are_counted_by_provider_and_strays_by_operator():
    placement = count_placement(
        [(CUDA, "MatMul"), (CUDA, "Add"), (CPU_PROVIDER, "Shape"), (CPU_PROVIDER, "Shape")], CUDA
    )
    assert placement.nodes == {CUDA: 2, CPU_PROVIDER: 2}
    assert placement.strays == {"Shape": 2}
    assert placement.sentence() == f"2 nodes on {CUDA}, 2 nodes on {CPU_PROVIDER}"


def test_everything_where_it_was_asked_for_passes():
    prove((CUDA, "MatMul"), (CUDA, "GroupQueryAttention"))
    prove((CPU_PROVIDER, "MatMul"), (CPU_PROVIDER, "LayerNormalization"), requested=CPU_PROVIDER)


def test_shape_arithmetic_may_stay_on_the_cpu():
    prove((CUDA, "MatMul"), (CPU_PROVIDER, "Shape"), (CPU_PROVIDER, "Gather"))


@pytest.mark.parametrize(
    "op", ["MatMul", "MatMulNBits", "FusedMatMul", "Gemm", "GroupQueryAttention", "QMoE", "Conv"]
)
def test_one_heavy_operator_on_the_cpu_is_refused(op):
    assert is_heavy(op)
    with pytest.raises(PlacementError) as caught:
        prove((CUDA, "MatMul"), (CUDA, "Add"), (CPU_PROVIDER, op))
    assert str(caught.value) == (
        f"decode.onnx was asked for {CUDA}, but runs with 2 nodes on {CUDA}, 1 nodes on "
        f"{CPU_PROVIDER} (astray: 1 {op}). See `twostroke doctor`."
    )
    assert caught.value.backend == "cuda"


def test_a_light_operator_that_is_no_shape_arithmetic_is_refused_too():
    assert not is_heavy("SimplifiedLayerNormalization")
    with pytest.raises(PlacementError, match="2 SimplifiedLayerNormalization"):
        prove((CUDA, "MatMul"), *[(CPU_PROVIDER, "SimplifiedLayerNormalization")] * 2)


def test_a_provider_that_claims_nothing_is_refused():
    with pytest.raises(PlacementError, match=f"runs with 1 nodes on {CPU_PROVIDER}"):
        prove((CPU_PROVIDER, "Shape"))
    with pytest.raises(PlacementError, match="no node anywhere"):
        prove()


def test_a_third_provider_is_refused():
    with pytest.raises(PlacementError, match="TensorrtExecutionProvider"):
        prove((CUDA, "MatMul"), ("TensorrtExecutionProvider", "Shape"))


def test_heavy_strays_are_named_first():
    light = [(CPU_PROVIDER, f"Light{i}") for i in range(5) for _ in range(3)]
    with pytest.raises(PlacementError, match="astray: 1 MatMul, 3 Light0, 3 Light1, 3 Light2"):
        prove((CUDA, "Add"), *light, (CPU_PROVIDER, "MatMul"))
