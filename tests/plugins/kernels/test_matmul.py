"""The operator against float64 and against ONNX Runtime's own, on each instruction set."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CASES = Path(__file__).with_name("product_cases.py")
SOURCES = Path(__file__).parents[3] / "plugins" / "twostroke_kernels"
CLOSE = 2e-6  # float32 sums in another order


def in_a_process(*arguments: str, **environment: str) -> float:
    """The worst error of all cases, computed by a process of its own."""
    done = subprocess.run(
        [sys.executable, str(CASES), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(done.stdout)


@pytest.mark.parametrize("isa", ["avx512_vnni", "avx_vnni", "avx2", "scalar"])
def test_each_instruction_set_computes_the_same(cases, isa):
    probe = [sys.executable, "-c", "import twostroke_kernels as k; print(k.isa())"]
    found = subprocess.check_output(
        probe, text=True, env={**os.environ, "TWOSTROKE_KERNELS_ISA": isa}
    )
    if found.strip() != isa:
        pytest.skip(f"this processor has no {isa}")
    assert in_a_process("2", TWOSTROKE_KERNELS_ISA=isa) < CLOSE


@pytest.mark.parametrize("threads", ["1", "3", "8"])
def test_any_number_of_threads_computes_the_same(cases, threads):
    assert in_a_process(threads) < CLOSE


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.tuples(st.integers(1, 90), st.integers(1, 400)),
    bits=st.sampled_from([4, 8]),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    num_rows=st.integers(1, 130),
    zeros=st.booleans(),
    bias=st.booleans(),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    seed=st.integers(0, 9),
)
def test_products_are_those_of_float64(
    cases, shape, bits, block, num_rows, zeros, bias, scale, seed
):
    case = cases.random_case(shape, bits, block, zeros=zeros, bias=bias, seed=seed)
    rows = np.random.default_rng(seed).standard_normal((num_rows, shape[1])) * scale
    rows[num_rows // 2] = 0  # a row of nothing
    assert cases.error(case, rows.astype(np.float32)) < CLOSE


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 32), (8, 128)])
@pytest.mark.parametrize("zeros", [False, True])
def test_onnx_runtime_s_operator_says_the_same(cases, bits, block, zeros):
    case = cases.random_case((96, 320), bits, block, zeros=zeros, bias=True)
    rows = np.random.default_rng(3).standard_normal((9, 320)).astype(np.float32)
    both = [
        cases.session(cases.model(case, domain)).run(None, {"A": rows})[0]
        for domain in ("com.microsoft", "twostroke")
    ]
    np.testing.assert_allclose(both[1], both[0], atol=CLOSE * np.abs(both[0]).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_is_the_same_bit_for_bit_however_many_are_computed_with_it(cases, bits):
    case = cases.random_case((50, 200), bits, 32, zeros=True, bias=True)
    rows = np.random.default_rng(5).standard_normal((100, 200)).astype(np.float32)
    session = cases.session(cases.model(case, "twostroke"))
    (together,) = session.run(None, {"A": rows})
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 13):
        (found,) = session.run(None, {"A": rows[:num_rows]})
        assert found.tobytes() == together[:num_rows].tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_not_finite_and_in_its_row(cases, bad):
    case = cases.random_case((33, 100), 8, 32, zeros=False, bias=False)
    rows = np.ones((3, 100), np.float32)
    rows[1, 70] = bad
    (found,) = cases.session(cases.model(case, "twostroke")).run(None, {"A": rows})
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_more_axes_than_two_and_no_rows_at_all(cases):
    case = cases.random_case((33, 64), 4, 32, zeros=False, bias=False)
    model = cases.onnx.load_from_string(cases.model(case, "twostroke"))
    for value in (model.graph.input[0], model.graph.output[0]):
        shape = value.type.tensor_type.shape
        last = shape.dim[-1].dim_value
        del shape.dim[:]
        for dimension in ("batch", "rows"):
            shape.dim.add().dim_param = dimension
        shape.dim.add().dim_value = last
    session = cases.session(model.SerializeToString())
    rows = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    (found,) = session.run(None, {"A": rows})
    wanted = cases.expected(case, rows.reshape(6, 64)).reshape(2, 3, 33)
    np.testing.assert_allclose(found, wanted, atol=CLOSE * np.abs(wanted).max())
    (nothing,) = session.run(None, {"A": rows[:, :0]})
    assert nothing.shape == (2, 0, 33)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bits": 3}, "bits must be 4 or 8"),
        ({"block_size": 48}, "power of two"),
        ({"N": 34}, "B must be uint8"),
    ],
)
def test_a_wrong_node_is_refused_by_its_name(cases, change, says):
    case = cases.random_case((33, 64), 4, 32, zeros=False, bias=False)
    model = cases.onnx.load_from_string(cases.model(case, "twostroke"))
    for attribute in model.graph.node[0].attribute:
        attribute.i = change.get(attribute.name, attribute.i)
    with pytest.raises(Exception, match=f"product.*{says}"):
        cases.session(model.SerializeToString())


def test_weights_are_packed_once_for_all_sessions_and_freed_with_the_last(cases):
    packed_bytes = cases.twostroke_kernels.packed_bytes
    before = packed_bytes()
    content = cases.model(
        cases.random_case((64, 256), 8, 64, zeros=False, bias=False, seed=8), "twostroke"
    )
    sessions = [cases.session(content), cases.session(content)]
    assert packed_bytes() - before == 64 * 256 + 64 * 4 * 4
    del sessions[0]
    assert packed_bytes() - before == 64 * 256 + 64 * 4 * 4
    sessions.clear()
    import gc

    gc.collect()
    assert packed_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="builds with cmake")
def test_no_sanitizer_objects(cases, tmp_path):
    asan = subprocess.check_output(["c++", "-print-file-name=libasan.so"], text=True).strip()
    if not Path(asan).is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    configure = ["cmake", "-S", str(SOURCES), "-B", str(tmp_path), "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run(
        [*configure, "-DTWOSTROKE_SANITIZE=address,undefined"], check=True, capture_output=True
    )
    subprocess.run(["cmake", "--build", str(tmp_path), "-j2"], check=True, capture_output=True)
    worst = in_a_process(
        "2",
        str(tmp_path / "twostroke_kernels.so"),
        LD_PRELOAD=asan,
        ASAN_OPTIONS="detect_leaks=0",  # Python leaks at its exit
        UBSAN_OPTIONS="halt_on_error=1",
    )
    assert worst < CLOSE
