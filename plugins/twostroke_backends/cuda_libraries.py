"""Which libraries ONNX Runtime's CUDA provider needs, and which of them cannot be loaded.

`onnxruntime.get_available_providers()` lists CUDA wherever the package was built with it, library
or not; so each library is loaded by hand, and the first that is missing is named.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import sys
from pathlib import Path

from twostroke.backends.ort import onnxruntime
from twostroke.install import installed_runtimes

_INSTALL = 'pip install "twostroke[cuda]"'


def missing_provider() -> str | None:
    """Why the installed ONNX Runtime has no CUDA provider at all; None where it has one."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return f"ONNX Runtime is not installed: {_INSTALL}."
    names = ("onnxruntime_providers_cuda.dll", "libonnxruntime_providers_cuda.so")
    capi = Path(spec.origin).parent / "capi"
    if any((capi / name).is_file() for name in names):
        return None
    installed = ", ".join(map(str, installed_runtimes())) or "onnxruntime"
    names_only = " ".join(runtime.name for runtime in installed_runtimes()) or "onnxruntime"
    return (
        f"the installed {installed} has no CUDA provider: `pip uninstall -y {names_only}`, "
        f"then `{_INSTALL}`."
    )


def required_libraries(cuda_major: int, platform: str = sys.platform) -> tuple[str, ...]:
    """File names of the libraries the provider is linked to, the dependencies first."""
    if platform == "win32":
        parts = (f"cudart64_{cuda_major}", f"cublasLt64_{cuda_major}", f"cublas64_{cuda_major}")
        return tuple(f"{part}.dll" for part in parts)
    parts = (f"cudart.so.{cuda_major}", f"cublasLt.so.{cuda_major}", f"cublas.so.{cuda_major}")
    return tuple(f"lib{part}" for part in (*parts, "curand.so.10"))


def built_for() -> tuple[int, int] | None:
    """The CUDA version the installed ONNX Runtime was built with, e.g. (13, 0)."""
    version = str(getattr(onnxruntime(), "cuda_version", "") or "")
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor or 0)) if major.isdigit() else None


def preload() -> None:
    """Loads the libraries that pip brought, from the places ONNX Runtime looks at.

    What it prints is kept from the terminal: `missing_library` says it better.
    """
    load = getattr(onnxruntime(), "preload_dlls", None)
    if load is None:  # releases before 1.21 search the system's paths only
        return
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.suppress(RuntimeError, OSError):
        load()


def missing_library() -> str | None:
    """The sentence that names the first library that cannot be loaded; None where all can."""
    built = built_for()
    if built is None:
        return "the installed ONNX Runtime does not tell for which CUDA version it was built."
    preload()
    for name in required_libraries(built[0]):
        try:
            ctypes.CDLL(name)
        except OSError:
            return (
                f"the CUDA library {name} cannot be loaded (ONNX Runtime was built for CUDA "
                f"{built[0]}.{built[1]}): `{_INSTALL}` brings it, or put its folder on "
                f"{'PATH' if sys.platform == 'win32' else 'LD_LIBRARY_PATH'}."
            )
    return None
