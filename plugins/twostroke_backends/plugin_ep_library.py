"""Libraries of plugin execution providers: found in Python packages, registered once a process.

A package of the kind `onnxruntime_ep_*` answers `get_library_path()` and `get_ep_names()` and
registers nothing by itself. ONNX Runtime takes a library once under a name; several models and both
strokes share that registration here, and the last one to go undoes it. Sessions must be closed
before; a registration that somebody else has made is left alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from twostroke.backends.ort import first_line, onnxruntime
from twostroke.errors import BackendUnavailableError

PREFIX = "onnxruntime_ep_"
_METADATA_NAMES = ("FULL_DEVICE_NAME", "Description", "description", "name")


@dataclass(frozen=True, slots=True)
class EpDevice:
    """A piece of hardware as one provider of a library sees it.

    `hardware` is "cpu", "gpu" or "npu". `metadata` holds what the provider and the hardware say of
    themselves. `handle` is ONNX Runtime's OrtEpDevice, good for as long as the registration.
    """

    provider: str
    vendor: str
    hardware: str
    metadata: Mapping[str, str]
    handle: Any

    @property
    def name(self) -> str:
        """A readable name."""
        told = (self.metadata[key] for key in _METADATA_NAMES if self.metadata.get(key))
        return next(told, "") or f"{self.vendor or 'unknown'} {self.hardware}"

    def sentence(self) -> str:
        """E.g. `OpenVINOExecutionProvider on cpu Intel(R) Xeon(R) (ov_device=CPU)`."""
        told = ", ".join(
            f"{key}={value}" for key, value in sorted(self.metadata.items()) if _is_short(value)
        )
        return f"{self.provider} on {self.hardware} {self.name}{f' ({told})' if told else ''}"


@dataclass(frozen=True, slots=True)
class ProviderLibrary:
    """One use of a registered library; `release` it when all sessions on it are closed.

    `devices` are those of the providers that its package names (all of them where no package
    does); `others` those of further providers that it brings, e.g. ones that choose by themselves.
    """

    path: Path
    devices: tuple[EpDevice, ...]
    others: tuple[EpDevice, ...] = ()

    def release(self) -> None:
        """Ends this use; the last one unregisters the library."""
        _release(self.path)


@dataclass(slots=True)
class _Registration:
    """A library that this process has registered, and how often it is in use."""

    name: str
    devices: tuple[EpDevice, ...]
    num_uses: int = 0


_registrations: dict[Path, _Registration] = {}
_lock = threading.Lock()


def installed_packages() -> tuple[str, ...]:
    """The installed packages of the kind, by name; imports none of them."""
    return tuple(
        sorted(found.name for found in pkgutil.iter_modules() if found.name.startswith(PREFIX))
    )


def open_package(package: str, backend: str) -> ProviderLibrary:
    """Registers the library of a Python package, or shares the registration that is there.

    Raises:
        BackendUnavailableError: the package is missing, broken or not of the kind, or ONNX Runtime
            refuses its library.
    """
    module = _imported(package, backend)
    try:
        path, names = Path(module.get_library_path()), frozenset(module.get_ep_names())
    except AttributeError:
        raise BackendUnavailableError(
            f"The package {package!r} brings no execution provider: it has no get_library_path() "
            f"and get_ep_names(). Name one that has, or its library with the option `library`.",
            backend=backend,
        ) from None
    except Exception as error:  # a stranger's package may do anything
        raise BackendUnavailableError(
            f"The package {package!r} does not find its library: {first_line(error)} Reinstall it.",
            backend=backend,
        ) from error
    return _opened(path, names, backend)


@contextmanager
def released_on_error(library: ProviderLibrary) -> Iterator[None]:
    """Ends the use of a library where the block fails; otherwise somebody has taken it over."""
    try:
        yield
    except BaseException:
        library.release()
        raise


def open_library(path: Path, backend: str) -> ProviderLibrary:
    """Registers a library that no package brings, or shares its registration.

    Raises:
        BackendUnavailableError: there is no such file, or ONNX Runtime refuses it.
    """
    return _opened(path, None, backend)


def _imported(package: str, backend: str) -> ModuleType:
    distribution = package.replace("_", "-")
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.split(".")[0]:
            fault = f"needs {error.name}, which is not installed."
        else:
            others = ", ".join(installed_packages()) or "none"
            fault = f"is not installed; installed are: {others}. Try `pip install {distribution}`."
    except Exception as error:  # a stranger's package may do anything
        fault = f"cannot be imported: {first_line(error)} Reinstall it."
    raise BackendUnavailableError(f"The package {package!r} {fault}", backend=backend)


def _opened(path: Path, names: frozenset[str] | None, backend: str) -> ProviderLibrary:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise BackendUnavailableError(
            f"The provider's library {path} does not exist. Reinstall its package.", backend=backend
        )
    with _lock:
        registration = _registrations.get(path)
        if registration is None:
            name = min(names) if names else path.stem  # some providers take it for their own
            registration = _registrations[path] = _register(path, name, backend)
        registration.num_uses += 1
    told = [names is None or device.provider in names for device in registration.devices]
    pairs = list(zip(registration.devices, told, strict=True))
    return ProviderLibrary(
        path,
        tuple(device for device, is_named in pairs if is_named),
        tuple(device for device, is_named in pairs if not is_named),
    )


def _register(path: Path, name: str, backend: str) -> _Registration:
    """Registers a library; what ONNX Runtime lists more than before is its own."""
    runtime = onnxruntime()
    num_before = len(runtime.get_ep_devices())
    while True:
        try:
            runtime.register_execution_provider_library(name, str(path))
            break
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            if "already registered" in str(error):  # by other code of this process
                name += "+"
                continue
            raise BackendUnavailableError(
                f"ONNX Runtime {runtime.__version__} refuses the provider's library {path.name}: "
                f"{first_line(error)} Install a version of its package that fits.",
                backend=backend,
            ) from error
    return _Registration(name, tuple(_devices(runtime.get_ep_devices()[num_before:])))


def _devices(handles: list[Any]) -> Iterator[EpDevice]:
    for handle in handles:
        hardware = handle.device
        metadata = {**dict(hardware.metadata), **dict(handle.ep_metadata)}
        kind = str(hardware.type).rsplit(".", 1)[-1].lower()
        vendor = str(hardware.vendor or handle.ep_vendor)
        yield EpDevice(str(handle.ep_name), vendor, kind, metadata, handle)


def _release(path: Path) -> None:
    with _lock:
        registration = _registrations[path]
        registration.num_uses -= 1
        if registration.num_uses == 0:
            del _registrations[path]
            onnxruntime().unregister_execution_provider_library(registration.name)


def _is_short(value: str) -> bool:
    return 0 < len(value) <= 24 and "/" not in value
