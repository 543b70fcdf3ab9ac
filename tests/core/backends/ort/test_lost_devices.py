"""Texts of ONNX Runtime's providers, and whether they mean the end of the device."""

import pytest

from twostroke.backends.ort.lost_devices import failed_run
from twostroke.errors import DeviceLostError, EngineError


@pytest.mark.parametrize(
    "text",
    [
        "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access was "
        "encountered ; GPU=0 ; hostname=a ; file=cuda_call.cc ; line=121",
        "CUDA failure 719: unspecified launch failure ; GPU=0",
        "CUDA error cudaErrorIllegalAddress:an illegal memory access was encountered",
        "Non-zero status code returned while running MatMul node. 887A0005 The GPU device instance "
        "has been suspended.",
        "WebGPU validation failed. Device is lost: the driver was reset",
    ],
)
def test_a_lost_device_is_known_by_its_words(text):
    fault = failed_run("decode.onnx", RuntimeError(text))
    assert isinstance(fault, DeviceLostError)
    assert str(fault).startswith("decode.onnx failed: ")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA failure 2: out of memory ; GPU=0",
        "CUDA failure 7000: no such code",
        "Exiting due to terminate flag being set to true.",
        "Non-zero status code returned while running Gather node. indices element out of bounds",
    ],
)
def test_other_faults_are_of_one_run(text):
    fault = failed_run("decode.onnx", RuntimeError(text))
    assert type(fault) is EngineError
