"""Choosing a backend: by name, or the best that is there; never another one silently.

`auto` takes the usable backend of the highest priority that can run the model. A named backend
that cannot be used is an error that says why, unless `fallback` names another. Wherever another
one takes over, a warning is logged and the reason travels with the result, so that the server can
show it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from twostroke.backends.devices import find_device
from twostroke.backends.discovery import Plugins
from twostroke.backends.protocol import Backend, BackendSpec, ProbeResult
from twostroke.errors import (
    BackendError,
    BackendUnavailableError,
    PlacementError,
    PluginError,
)
from twostroke.install import check_install, refuse_two_runtimes
from twostroke.types import Stroke

AUTO = "auto"
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Opened:
    """An open backend, and how it came to be this one.

    `requested` is what the YAML said; `reason_for_fallback` is a sentence where another backend
    took over, else None. `dialect` is what its spec wants for each stroke.
    """

    backend: Backend
    requested: str
    reason_for_fallback: str | None
    dialect: Mapping[Stroke, str]


def probe(spec: BackendSpec) -> ProbeResult:
    """The spec's probe, with a fault of the plugin turned into a reason."""
    try:
        return spec.probe()
    except Exception as error:  # probes must not raise; a stranger's may
        return ProbeResult(reason=f"its probe failed with {type(error).__name__}: {error}")


def open_backend(
    plugins: Plugins,
    name: str = AUTO,
    device: int | str = 0,
    options: Mapping[str, Any] | None = None,
    fallback: Sequence[str] = (),
) -> Opened:
    """Opens the backend `name`, or the first of `fallback` that can be opened in its stead.

    `device` (its index, or a part of its name) and `options` go to the first candidate; one that
    takes over opens its device 0 with its own defaults. The caller closes the backend.

    Raises:
        BackendUnavailableError: it finds no device, library or package; the message says which.
        PluginError: the plugin that brings it failed or is blocked.
        BackendError: an unknown name, device or option.
        InstallError: no ONNX Runtime, or more than one.
    """
    return open_with_fallback(plugins, lambda opened: opened, name, device, options, fallback)


def reopen(plugins: Plugins, opened: Opened, options: Mapping[str, Any]) -> Opened:
    """Opens the device of a lost backend again: the same one, whatever might take over.

    `options` are those of the backend that was asked for; one that took over has none. The one
    before should be closed.

    Raises:
        BackendUnavailableError: the device is not there any more.
        BackendError: from opening it.
    """
    lost = opened.backend
    given = options if opened.reason_for_fallback is None else {}
    return replace(opened, backend=_open(plugins, lost.name, lost.device.index, given))


def open_with_fallback(
    plugins: Plugins,
    build: Callable[[Opened], _T],
    name: str = AUTO,
    device: int | str = 0,
    options: Mapping[str, Any] | None = None,
    fallback: Sequence[str] = (),
) -> _T:
    """As `open_backend`, and lets `build` load its sessions before the choice is final.

    Some faults show only when a graph is loaded: a library is missing, or nodes land elsewhere
    than asked. When `build` raises PlacementError or BackendUnavailableError the backend is
    closed, and the next name of `fallback` gets its turn; with `auto`, the next usable backend.
    Calls may be nested, one for each stroke: an error that names another backend passes through.
    """
    refuse_two_runtimes()
    if AUTO in fallback:
        raise BackendError(
            "fallback: 'auto' names no backend; list the ones that may take over, e.g. [cpu]."
        )
    for wanted in (name, *fallback):
        _check_known(plugins, wanted)  # a misspelt fallback shows before anything is opened
    candidates = [*(_usable_names(plugins) if name == AUTO else (name,)), *fallback]
    reasons: list[str] = []
    for position, candidate in enumerate(candidates):
        try:
            if position == 0:
                backend = _open(plugins, candidate, device, options or {})
            else:  # device and options were meant for the first
                backend = _open(plugins, candidate, 0, {})
            dialect = _spec(plugins, candidate).dialect
            return _build(build, backend, dialect, name, reasons)
        except (BackendUnavailableError, PlacementError, PluginError) as error:
            is_ours = error.backend in (None, candidate)
            if not is_ours or position == len(candidates) - 1:
                raise
            reasons.append(str(error))
    raise AssertionError("unreachable: the last candidate returns or raises")


def check_name(plugins: Plugins, name: str) -> None:
    """Refuses a name that could not be opened on any machine; opens and probes nothing.

    Raises:
        BackendError: no plugin brings it; names the nearest one and all of them.
        PluginError: the plugin that brings it failed or is blocked.
    """
    _check_known(plugins, name)
    if name != AUTO:
        _spec(plugins, name)


def preferred_dialect(plugins: Plugins, name: str, stroke: Stroke) -> str:
    """The dialect that a backend wants for a stroke; `auto` is asked for the one it would take.

    A name that cannot be used answers "fused": opening it says why it cannot.
    """
    spec = meant_spec(plugins, name)
    return "fused" if spec is None else spec.dialect[stroke]


def meant_spec(plugins: Plugins, name: str) -> BackendSpec | None:
    """The spec of that name; of `auto` the one it would take. None where there is none."""
    if name != AUTO:
        return plugins.backends.get(name)
    by_priority = sorted(plugins.backends.values(), key=lambda spec: (-spec.priority, spec.name))
    return next((spec for spec in by_priority if probe(spec).is_available), None)


def _build(
    build: Callable[[Opened], _T],
    backend: Backend,
    dialect: Mapping[Stroke, str],
    requested: str,
    reasons: Sequence[str],
) -> _T:
    """Runs `build` on an open backend, which is closed where that fails."""
    reason = None
    if reasons:
        allowed = "as the next best" if requested == AUTO else "as `fallback` allows"
        reason = f"{' '.join(reasons)} Running on {backend.name} instead, {allowed}."
        _log.warning("%s", reason)
    try:
        return build(Opened(backend, requested, reason, dialect))
    except BaseException:
        backend.close()
        raise


def _open(plugins: Plugins, name: str, device: int | str, options: Mapping[str, Any]) -> Backend:
    spec, found = _named(plugins, name)
    return spec.open(find_device(spec.name, found, device), options)


def _named(plugins: Plugins, name: str) -> tuple[BackendSpec, ProbeResult]:
    spec = _spec(plugins, name)
    found = probe(spec)
    if not found.is_available:
        raise BackendUnavailableError(
            f"The backend {name!r} cannot be used here: {found.reason or 'it gave no reason'}",
            backend=name,
        )
    return spec, found


def _check_known(plugins: Plugins, name: str) -> None:
    """Refuses a name that no plugin brings, not even one that failed.

    Raises:
        BackendError: names the nearest one and all of them.
    """
    if name in (AUTO, *plugins.backends) or plugins.failure(name) is not None:
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
        f"{record.error.rstrip('.')}. `twostroke plugins` lists all plugins.",
        backend=name,
    )


def _usable_names(plugins: Plugins) -> list[str]:
    """Names of the backends that find a device, the highest priority first.

    Raises:
        BackendUnavailableError: there is none; says why for each.
        InstallError: there is none, and no ONNX Runtime either.
    """
    usable, reasons = [], []
    for spec in sorted(plugins.backends.values(), key=lambda spec: (-spec.priority, spec.name)):
        found = probe(spec)
        if found.is_available:
            usable.append(spec.name)
        reasons.append(f"{spec.name}: {found.reason}")
    if usable:
        return usable
    check_install()
    raise BackendUnavailableError(
        f"No backend can be used here. {' '.join(reasons) or 'No plugin brings one.'}"
    )
