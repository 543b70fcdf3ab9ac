"""Choosing a backend: by name, or the best that is there; never another one silently.

`auto` takes the usable backend of the highest priority. A named backend that cannot be used is an
error that says why, unless `fallback` names another: then a warning is logged and the reason
travels with the result, so that the server can show it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import Backend, BackendSpec, Device, ProbeResult
from twostroke.errors import (
    BackendError,
    BackendUnavailableError,
    PlacementError,
    PluginError,
)
from twostroke.install import check_install, installed_runtimes, refuse_two_runtimes

AUTO = "auto"
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Opened:
    """An open backend, and how it came to be this one.

    `requested` is what the YAML said; `reason_for_fallback` is a sentence where another backend
    took over, else None.
    """

    backend: Backend
    requested: str
    reason_for_fallback: str | None = None


def probe(spec: BackendSpec) -> ProbeResult:
    """The spec's probe, with a fault of the plugin turned into a reason."""
    try:
        return spec.probe()
    except Exception as error:  # probes must not raise; a stranger's may
        return ProbeResult(reason=f"its probe failed with {type(error).__name__}: {error}")


def open_backend(
    plugins: Plugins,
    name: str = AUTO,
    device_index: int = 0,
    options: Mapping[str, Any] | None = None,
    fallback: Sequence[str] = (),
) -> Opened:
    """Opens the backend `name`, or the first of `fallback` that can be opened in its stead.

    `options` go to the backend that was asked for; a fallback opens its device 0 with its own
    defaults. The caller closes the backend.

    Raises:
        BackendUnavailableError: it finds no device, library or package; the message says which.
        PluginError: the plugin that brings it failed or is blocked.
        BackendError: an unknown name, device or option.
        InstallError: no ONNX Runtime, or more than one.
    """
    return open_with_fallback(plugins, lambda opened: opened, name, device_index, options, fallback)


def open_with_fallback(
    plugins: Plugins,
    build: Callable[[Opened], _T],
    name: str = AUTO,
    device_index: int = 0,
    options: Mapping[str, Any] | None = None,
    fallback: Sequence[str] = (),
) -> _T:
    """As `open_backend`, and lets `build` load its sessions before the choice is final.

    Some faults show only when a graph is loaded: a library is missing, or nodes land elsewhere
    than asked. When `build` raises PlacementError or BackendUnavailableError the backend is
    closed, and the next name of `fallback` gets its turn.
    """
    refuse_two_runtimes()
    for wanted in (name, *fallback):
        if wanted != AUTO:
            _check_known(plugins, wanted)  # a misspelt fallback shows at once
    reason: str | None = None
    for position, wanted in enumerate((name, *fallback)):
        is_last = position == len(fallback)
        try:
            if position == 0:
                backend = _open(plugins, wanted, device_index, options or {})
            else:
                backend = _open(plugins, wanted, 0, {})
            if reason is not None:
                reason = f"{reason} Running on {backend.name} instead, as `fallback` allows."
                _log.warning("%s", reason)
            return _build(build, Opened(backend, name, reason))
        except (BackendUnavailableError, PlacementError, PluginError) as error:
            if is_last:
                raise
            reason = str(error) if reason is None else f"{reason} {error}"
    raise AssertionError("unreachable: the last candidate returns or raises")


def _build(build: Callable[[Opened], _T], opened: Opened) -> _T:
    try:
        return build(opened)
    except BaseException:
        opened.backend.close()
        raise


def _open(plugins: Plugins, name: str, device_index: int, options: Mapping[str, Any]) -> Backend:
    spec, found = _best(plugins) if name == AUTO else _named(plugins, name)
    device = _device(spec, found, device_index)
    return spec.open(device, options)


def _named(plugins: Plugins, name: str) -> tuple[BackendSpec, ProbeResult]:
    spec = _spec(plugins, name)
    found = probe(spec)
    if not found.is_available:
        raise BackendUnavailableError(
            f"The backend {name!r} cannot be used here: {found.reason or 'it gave no reason'}"
        )
    return spec, found


def _check_known(plugins: Plugins, name: str) -> None:
    """Refuses a name that no plugin brings, not even one that failed.

    Raises:
        BackendError: names the nearest one and all of them.
    """
    if name in plugins.backends or plugins.failure(name) is not None:
        return
    near = difflib.get_close_matches(name, plugins.backends, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known = ", ".join(sorted(plugins.backends)) or "none"
    failed = "; ".join(f"{r}: {r.error}" for r in plugins.records if r.status == "failed")
    raise BackendError(
        f"There is no backend {name!r}.{hint} Known: {known}, or auto."
        f"{f' Plugins that failed: {failed}' if failed else ''}"
    )


def _spec(plugins: Plugins, name: str) -> BackendSpec:
    """The spec of a known name.

    Raises:
        PluginError: its plugin failed or is blocked.
    """
    if name in plugins.backends:
        return plugins.backends[name]
    record = plugins.failure(name)
    assert record is not None  # _check_known has seen it
    raise PluginError(
        f"The backend {name!r} cannot be used: the plugin {record} {record.status}: "
        f"{record.error.rstrip('.')}. `twostroke plugins` lists all plugins."
    )


def _best(plugins: Plugins) -> tuple[BackendSpec, ProbeResult]:
    reasons = []
    for spec in sorted(plugins.backends.values(), key=lambda spec: (-spec.priority, spec.name)):
        found = probe(spec)
        if found.is_available:
            return spec, found
        reasons.append(f"{spec.name}: {found.reason}")
    if not installed_runtimes():
        check_install()
    raise BackendUnavailableError(
        f"No backend can be used here. {' '.join(reasons) or 'No plugin brings one.'}"
    )


def _device(spec: BackendSpec, found: ProbeResult, index: int) -> Device:
    for device in found.devices:
        if device.index == index:
            return device
    listed = ", ".join(f"{device.index} ({device.name})" for device in found.devices)
    raise BackendError(f"The backend {spec.name!r} has no device {index}. Its devices: {listed}.")
