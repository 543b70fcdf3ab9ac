"""The import of onnxruntime, and the words that its messages and types are turned into."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

from twostroke.errors import BackendError
from twostroke.install import check_install

_DTYPES = {  # ONNX Runtime's name of an element type: numpy's
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
_PLACE = re.compile(r"Exception from \S+:\d+:$")


@functools.cache
def onnxruntime() -> Any:
    """The module `onnxruntime`, imported on first use (it takes a tenth of a second).

    Raises:
        InstallError: none is installed, more than one, or one that is too old.
        BackendError: it is installed but cannot be imported.
    """
    check_install()
    try:
        return importlib.import_module("onnxruntime")
    except Exception as error:  # a broken shared library shows as almost anything
        raise BackendError(
            f"onnxruntime is installed but cannot be imported: {first_line(error)} "
            f"Reinstall it with `pip install --force-reinstall`."
        ) from error


def dtype_name(ort_type: str) -> str:
    """Numpy's name of an ONNX Runtime type such as `tensor(float16)`; unknown ones unchanged."""
    return _DTYPES.get(ort_type, ort_type)


def first_line(error: BaseException) -> str:
    """The first line of an ONNX Runtime error that tells something, without source locations.

    OpenVINO's errors begin with the places that they passed through.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = next((line for line in lines if not _PLACE.search(line)), lines[0])
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"\S*/onnxruntime/\S+?:\d+ ", "", text)
    return text if text.endswith(".") else f"{text}."
