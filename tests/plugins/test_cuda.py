from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from twostroke.backends import Backend, Device, Placement, TensorSpec
from twostroke.backends.choose import open_backend
from twostroke.backends.discovery import load_plugins
from twostroke.backends.ort import load_session, onnxruntime
from twostroke.bundle.graph_header import GraphHeader
from twostroke.errors import BackendError, BackendUnavailableError, PlacementError
from twostroke.types import Stroke
from twostroke_backends import cuda, cuda_libraries, cuda_probe
from twostroke_backends.cuda import CudaBackend
from twostroke_backends.cuda_precision import floats_of, refuse_kv_dtype, too_old

GPU = Device(1, "A GPU", "gpu")


class FakeMemory:
    """A device that gives no memory away, but knows what it is called."""

    ort_device = ("cuda", 1)
    stream = 4711

    def __init__(self) -> None:
        self.is_released = False

    def release(self) -> None:
        self.is_released = True


class FakeDriver:
    def __init__(self) -> None:
        self.given = FakeMemory()

    def memory(self, index: int) -> FakeMemory:
        assert index == 1
        return self.given


def backend(**options: object) -> CudaBackend:
    return CudaBackend(GPU, options, FakeDriver())


def no_gpu() -> str:
    """The probe's reason; "" on a machine with a GPU."""
    return cuda.probe().reason


needs_no_gpu = pytest.mark.skipif(not no_gpu(), reason="there is a GPU here")
needs_gpu = pytest.mark.skipif(bool(no_gpu()), reason=no_gpu())


@needs_no_gpu
def test_asking_for_it_here_fails_in_one_sentence_that_names_what_is_missing():
    with pytest.raises(BackendUnavailableError) as caught:
        open_backend(load_plugins(), "cuda")
    message = str(caught.value)
    assert message.startswith("The backend 'cuda' cannot be used here: ")
    assert any(name in message for name in ("libcuda.so.1", "nvcuda.dll", "libcu", "CUDA provider"))
    assert "\n" not in message


@needs_no_gpu
def test_a_fallback_to_the_cpu_is_reported():
    opened = open_backend(load_plugins(), "cuda", fallback=["cpu"])
    assert opened.backend.name == "cpu"
    assert no_gpu() in opened.reason_for_fallback


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"missing_provider": "no provider."}, "no provider."),
        ({"missing_library": "no cublas."}, "no cublas."),
        ({"built_for": (14, 0)}, "serves CUDA 13.0, but ONNX Runtime was built for CUDA 14.0"),
    ],
)
def test_the_probe_names_the_first_thing_that_is_missing(monkeypatch, faults, said):
    class Driver:
        def cuda_version(self):
            return (13, 0)

        def devices(self):
            raise AssertionError("not asked while something is missing")

    answers = {"missing_provider": None, "missing_library": None, "built_for": (13, 0)} | faults
    for name, answer in answers.items():
        monkeypatch.setattr(cuda_libraries, name, lambda answer=answer: answer)
    monkeypatch.setattr(cuda_probe, "load_library", lambda: None)
    monkeypatch.setattr(cuda_probe, "CudaDriver", lambda library: Driver())
    result = cuda.probe()
    assert not result.is_available
    assert said in result.reason


def test_a_probe_never_raises(monkeypatch):
    def explode() -> None:
        raise RuntimeError("a driver bug")

    monkeypatch.setattr(cuda_probe, "load_library", explode)
    assert "a driver bug" in cuda.probe().reason


def test_required_libraries_follow_the_cuda_version():
    assert cuda_libraries.required_libraries(12, "linux") == (
        "libcudart.so.12",
        "libcublasLt.so.12",
        "libcublas.so.12",
        "libcurand.so.10",
    )
    assert "cublas64_13.dll" in cuda_libraries.required_libraries(13, "win32")


def test_a_missing_library_is_named_with_the_version_it_must_have(monkeypatch):
    monkeypatch.setattr(
        cuda_libraries, "required_libraries", lambda major: (f"libnowhere.so.{major}",)
    )
    monkeypatch.setattr(cuda_libraries, "built_for", lambda: (13, 0))
    reason = cuda_libraries.missing_library()
    assert "libnowhere.so.13 cannot be loaded" in reason
    assert 'pip install "twostroke[cuda]"' in reason


def test_preloading_prints_nothing(capfd):
    cuda_libraries.preload()
    assert capfd.readouterr() == ("", "")


def test_a_runtime_without_the_provider_is_named(monkeypatch, tmp_path):
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)

    class Spec:
        origin = str(package / "__init__.py")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec())
    assert "has no CUDA provider: `pip uninstall" in cuda_libraries.missing_provider()
    (package / "capi" / "libonnxruntime_providers_cuda.so").touch()
    assert cuda_libraries.missing_provider() is None


def test_options_become_the_runtimes():
    assert backend().provider_options() == {
        "device_id": "1",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
        "has_user_compute_stream": "1",
        "user_compute_stream": "4711",
    }
    given = backend(memory_limit_bytes=1 << 30, arena_growth="next_power_of_two", tf32=True)
    assert given.provider_options() == {
        "device_id": "1",
        "arena_extend_strategy": "kNextPowerOfTwo",
        "use_tf32": "1",
        "has_user_compute_stream": "1",
        "user_compute_stream": "4711",
        "gpu_mem_limit": str(1 << 30),
    }
    with pytest.raises(BackendError, match=r"'gpu_mem_limit'.*memory_limit_bytes"):
        backend(gpu_mem_limit=1)


def test_small_tensors_stay_in_host_memory():
    opened = backend()
    assert isinstance(opened, Backend)
    buffer = opened.allocate((2, 3), "int64", on_host=True)
    assert isinstance(buffer.read(), np.ndarray)
    memory = opened._memory
    opened.close()
    assert memory.is_released


@needs_no_gpu
def test_a_session_that_lands_on_the_cpu_is_refused(bundle, monkeypatch):
    """What ONNX Runtime does without an error where CUDA's libraries are missing."""
    if cuda.PROVIDER not in onnxruntime().get_available_providers():
        pytest.skip("this onnxruntime was built without CUDA")
    monkeypatch.setattr(cuda, "refuse_kv_dtype", lambda *given: None)
    with pytest.raises(PlacementError) as caught:
        backend(share_weights=False).open_session(bundle / "decode.onnx", Stroke.DECODE)
    message = str(caught.value)
    assert "asked for CUDAExecutionProvider, but runs with" in message
    assert "nodes on CPUExecutionProvider (astray: " in message
    assert "twostroke doctor" in message
    assert caught.value.backend == "cuda"


def test_a_float32_cache_is_refused_with_what_to_export_instead(bundle: Path):
    if cuda.PROVIDER not in onnxruntime().get_available_providers():
        pytest.skip("this onnxruntime was built without CUDA")
    session = load_session(
        bundle / "decode.onnx", cuda.PROVIDER, {}, onnxruntime().SessionOptions(), on_host=False
    )
    with pytest.raises(PlacementError) as caught:
        refuse_kv_dtype(session, "decode.onnx")
    assert str(caught.value) == (
        "decode.onnx keeps its KV cache in float32, and GroupQueryAttention runs on CUDA in "
        "float16 and bfloat16 only: export the model again with `--precision fp16`."
    )


@pytest.mark.parametrize(
    ("bits", "dtype", "advice"),
    [
        ({}, "float32", "`--precision fp16`"),
        ({4: 7, 8: 1}, "float32", "`--precision int4 --activations fp16`"),
        ({8: 3}, "float32", "`--precision int8 --activations fp16`"),
        ({4: 7}, "int8", "`--kv-dtype auto --activations fp16`"),
    ],
)
def test_the_advice_keeps_the_weights_as_they_are(bits, dtype, advice):
    session = SimpleNamespace(
        inputs={"past_key_values.0.key": TensorSpec("past_key_values.0.key", (), dtype)},
        placement=Placement("CUDA", {}, {"GroupQueryAttention": 2}),
    )
    with pytest.raises(PlacementError, match=dtype) as caught:
        refuse_kv_dtype(session, "decode.onnx", GraphHeader(weight_bits=Counter(bits)))
    assert str(caught.value).endswith(f"export the model again with {advice}.")


def test_floats_follow_the_compute_capability():
    assert floats_of((7, 5)) == {"float32", "float16"}
    assert "bfloat16" in floats_of((8, 0))


@pytest.mark.parametrize(
    ("capability", "built", "said"),
    [
        ((9, 0), (13, 0), None),
        ((7, 5), (13, 0), None),
        ((7, 0), (12, 8), None),
        ((7, 0), (13, 0), "install an onnxruntime-gpu that was built for CUDA 12"),
        ((5, 2), (12, 8), "use the backend cpu"),
        ((5, 2), None, None),
    ],
)
def test_gpus_that_the_runtime_has_no_kernels_for_are_refused(capability, built, said):
    fault = too_old("A GPU", capability, built)
    assert fault is None if said is None else fault is not None and fault.endswith(said)


@pytest.mark.gpu
@needs_gpu
def test_the_gpu_holds_the_cache_and_its_rows_are_views():
    (device, *_) = cuda.probe().devices
    opened = CudaBackend(device, {})
    cache = opened.allocate((4, 2, 8, 16), "float16")
    assert not cache.read().any()
    cache.rows(2, 1).write(np.ones((1, 2, 8, 16), np.float16))
    assert cache.read().sum(axis=(1, 2, 3)).tolist() == [0, 0, 256, 0]
    del cache
    opened.close()


@pytest.mark.gpu
@needs_gpu
def test_the_gpu_refuses_a_float32_cache(bundle: Path):
    (device, *_) = cuda.probe().devices
    opened = CudaBackend(device, {})
    with pytest.raises(PlacementError, match="--precision fp16"):
        opened.open_session(bundle / "decode.onnx", Stroke.DECODE)
    opened.close()
