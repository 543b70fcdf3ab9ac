"""Any execution provider that comes as a Python package: ONNX Runtime's plugin interface.

The options name the package (or the library itself) and, where it finds several, the device. The
KV cache lies in host memory, which providers on a CPU read and write where it is, and others copy.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from twostroke.backends import (
    CHOSEN_BY_OPTIONS,
    HOST_MEMORY,
    BackendSpec,
    Buffer,
    Device,
    ProbeResult,
    hookimpl,
)
from twostroke.backends.capabilities import SessionMemory
from twostroke.backends.ort import (
    Option,
    OrtSession,
    allocate_host,
    check_options,
    load_session,
    onnxruntime,
    prove_placement,
)
from twostroke.errors import BackendError, BundleError, InstallError, PlacementError
from twostroke.install import check_install
from twostroke.types import Stroke
from twostroke_backends.plugin_ep_devices import HARDWARE, METADATA, choose, device_facts
from twostroke_backends.plugin_ep_library import (
    EpDevice,
    ProviderLibrary,
    installed_packages,
    open_library,
    open_package,
    released_on_error,
)
from twostroke_backends.plugin_ep_providers import (
    known_provider,
    options_for_graph,
    provider_options,
)

NAME = "plugin_ep"
OPTIONS = (
    Option("package", str, "the Python package that brings the provider"),
    Option("library", str, "or the path of the provider's library, where no package does"),
    Option("provider", str, "the provider's name, where there are several"),
    HARDWARE,
    METADATA,
    Option("provider_options", dict, "the provider's own options"),
)
_UNKNOWN_PROPERTY = re.compile(r"Unsupported property (\S+)")
_ADVICE = (
    "The provider does not know these operators. It may take the graph of the other dialect: "
    "`twostroke export --dialect both`, and `dialect:` in the YAML."
)


def probe() -> ProbeResult:
    """One entry that stands for whatever the options will name, if ONNX Runtime can be used."""
    try:
        check_install()
    except InstallError as error:
        return ProbeResult(reason=str(error))
    packages = ", ".join(installed_packages()) or "none"
    device = Device(
        0,
        "the device that the options name",
        "plugin",
        capabilities=frozenset({CHOSEN_BY_OPTIONS}),
        details={"packages": packages},
    )
    return ProbeResult((device,))


class PluginEpBackend:
    """Sessions on one device of a provider's library."""

    has_row_views = True
    touches_lazily = True
    memory_space = HOST_MEMORY

    def __init__(
        self,
        name: str,
        library: ProviderLibrary,
        found: EpDevice,
        provider_options: Mapping[str, str],
        index: int = 0,
    ) -> None:
        """Takes over `library`, which `close` releases. `index` is the device's in the probe."""
        known = known_provider(found.provider)
        self.name = name
        self.device = device_facts(found, index, known.prefill_chunk_tokens if known else None)
        self.session_memory = SessionMemory()
        if known is not None and known.session_memory and self.device.kind == "cpu":
            self.session_memory = known.session_memory
        self.provider_options = dict(provider_options)
        self._library: ProviderLibrary | None = library
        self._found = found
        self._sessions: weakref.WeakSet[OrtSession] = weakref.WeakSet()

    def allocate(self, shape: tuple[int, ...], dtype: str, *, on_host: bool = False) -> Buffer:
        """Zeros in host memory; `on_host` changes nothing here."""
        return allocate_host(shape, dtype)

    def open_session(self, graph: Path, stroke: Stroke) -> OrtSession:
        """Loads a graph and proves that the provider has it.

        Raises:
            PlacementError: nodes landed elsewhere.
            BackendError: the provider refuses an option.
            BundleError: the graph cannot be loaded.
        """
        if self._library is None:
            raise BackendError(f"the backend {self.name!r} is closed")
        try:
            session = load_session(
                graph,
                self._found.provider,
                options_for_graph(self._found.provider, self.provider_options, graph),
                _session_options(),
                devices=[self._found.handle],
                on_host=False,  # whatever its memory: what is bound is copied there and then
            )
        except BundleError as error:
            _blame_option(self.name, error)
            raise
        try:
            prove_placement(session.placement, graph.name, self.name, _ADVICE)
        except PlacementError:
            session.close()
            raise
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """Closes what is still open, then gives the library back. Doing so twice is harmless."""
        library, self._library = self._library, None
        if library is not None:
            for session in list(self._sessions):
                session.close()
            library.release()


def _open(device: Device, options: Mapping[str, Any]) -> PluginEpBackend:
    """Opens what the options name; `device` only stands for it.

    Raises:
        BackendError: bad options, or not exactly one device.
        BackendUnavailableError: no such package, or a library that cannot be registered.
    """
    checked = check_options(NAME, options, OPTIONS)
    if (checked["package"] is None) == (checked["library"] is None):
        installed = ", ".join(installed_packages()) or "none"
        raise BackendError(
            f"The backend {NAME!r} needs the option `package`, e.g. onnxruntime_ep_openvino, or "
            f"else `library`. Installed packages of the kind: {installed}."
        )
    if checked["package"] is not None:
        library = open_package(checked["package"], NAME)
    else:
        library = open_library(Path(checked["library"]), NAME)
    with released_on_error(library):
        wanted = {key: checked[key] for key in ("provider", "hardware", "metadata")}
        found = choose(library, NAME, **wanted)
        given = provider_options(NAME, found, checked["provider_options"] or {})
        return PluginEpBackend(NAME, library, found, given)


def _blame_option(backend: str, error: BundleError) -> None:
    """Raises BackendError where loading failed because of a property that the provider lacks."""
    unknown = _UNKNOWN_PROPERTY.search(str(error.__cause__))
    if unknown is not None:
        raise BackendError(
            f"The backend {backend!r}: the provider knows no property {unknown[1]!r} for this "
            f"device. Take it out of the option `properties`."
        ) from error


def _session_options() -> Any:
    options = onnxruntime().SessionOptions()
    options.log_severity_level = 4  # the provider's own log; what fails is raised
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = 1  # only shape arithmetic stays on the CPU
    return options


@hookimpl
def twostroke_backends() -> Sequence[BackendSpec]:
    """Whatever provider the YAML names; never taken by `auto`."""
    return [
        BackendSpec(
            name=NAME,
            api_version=1,
            summary="any execution provider that comes as a Python package of its own",
            probe=probe,
            open=_open,
            priority=-20,
            dialect={Stroke.PREFILL: "standard", Stroke.DECODE: "standard"},
        )
    ]
