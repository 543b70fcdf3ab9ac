"""What is here, what is missing, what to install: `twostroke plugins` and `twostroke doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from twostroke.backends.choose import probe
from twostroke.backends.discovery import PluginRecord, Plugins
from twostroke.backends.protocol import Backend, BackendSpec, Device, ProbeResult
from twostroke.config.schema import Config, ModelConfig
from twostroke.doctor_models import model_lines
from twostroke.errors import InstallError
from twostroke.install import RuntimeDistribution, check_install, installed_runtimes
from twostroke.life.limits import device_limits
from twostroke.model.reader import choose_reader
from twostroke.source import cache_root
from twostroke.types import Stroke

_SHOWN_PACKAGES = ("numpy", "tokenizers", "aiohttp", "pluggy", "pydantic")
_EXPORT_PACKAGES = ("torch", "transformers", "optimum", "onnx", "onnxscript")


def format_plugins(plugins: Plugins) -> str:
    """Each entry point: loaded, blocked or failed, from which distribution, and why."""
    if not plugins.records:
        return "no plugin is installed; reinstall twostroke to get its own back"
    return "\n".join(line for record in plugins.records for line in _record_lines(record))


def format_doctor(plugins: Plugins, config: Config | None = None) -> tuple[str, bool]:
    """The whole report, and whether a model could be served here.

    With a configuration also where its models' graphs run; bundles on this disk are opened for
    that. True where exactly one ONNX Runtime is installed and at least one backend finds a device.
    """
    runtimes = installed_runtimes()
    fault = _install_fault(runtimes)
    probes = [(spec, probe(spec)) for spec in _by_priority(plugins)]
    usable = [spec.name for spec, found in probes if found.is_available]
    sections = [
        ("versions", _version_lines()),
        ("onnxruntime", _runtime_lines(runtimes, fault)),
        ("backends", [line for spec, found in probes for line in _backend_lines(spec, found)]),
        ("plugins", format_plugins(plugins).splitlines()),
        ("folders", [f"cache: {cache_root()} ({_writable(cache_root())})"]),
    ]
    is_healthy = fault is None and bool(usable)
    if is_healthy and config is not None and config.models:
        sections.append(("models", list(model_lines(config, plugins))))
    verdict = _verdict(plugins, usable[0]) if is_healthy else "not ready: see above"
    report = "\n\n".join("\n".join([title, *_indent(lines)]) for title, lines in sections)
    return f"{report}\n\n{verdict}", is_healthy


def _verdict(plugins: Plugins, backend: str) -> str:
    """What `auto` takes for both strokes, and what is to be said of reading prompts elsewhere."""
    reader = choose_reader(ModelConfig(name="any", source="any"), plugins, None)
    note = "" if reader.note is None else f"\n{reader.note}"
    return f"ready: `backend: auto` takes {backend}{note}"


def _record_lines(record: PluginRecord) -> list[str]:
    brings = ", ".join(
        [
            *(f"backend {n}" for n in record.backends),
            *(f"exporter {n}" for n in record.exporters),
            *(f"parser {n}" for n in record.parsers),
            *(f"surface {n}" for n in record.surfaces),
        ]
    )
    lines = [f"{record.status:8}{record}{f': {brings}' if brings else ''}"]
    return [*lines, *(f"        {line}" for line in record.error.splitlines())]


def _by_priority(plugins: Plugins) -> list[BackendSpec]:
    return sorted(plugins.backends.values(), key=lambda spec: (-spec.priority, spec.name))


def _install_fault(runtimes: Sequence[RuntimeDistribution]) -> str | None:
    try:
        check_install(runtimes)
    except InstallError as error:
        return str(error)
    return None


def _version_lines() -> list[str]:
    lines = [
        f"twostroke {_version('twostroke') or 'not installed as a distribution'}",
        f"python {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"in {sys.prefix}",
        ", ".join(f"{name} {_version(name) or 'missing'}" for name in _SHOWN_PACKAGES),
    ]
    missing = [name for name in _EXPORT_PACKAGES if _version(name) is None]
    if missing:
        lines.append(
            f"export: cannot, without {', '.join(missing)}; "
            f'`pip install "twostroke[export]"` brings them (serving needs none of them)'
        )
    else:
        versions = ", ".join(f"{name} {_version(name)}" for name in _EXPORT_PACKAGES)
        lines.append(f"export: {versions}")
    return lines


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _runtime_lines(runtimes: Sequence[RuntimeDistribution], fault: str | None) -> list[str]:
    lines = [str(runtime) for runtime in runtimes]
    return [*lines, fault] if fault is not None else lines or ["built from source"]


def _backend_lines(spec: BackendSpec, found: ProbeResult) -> list[str]:
    if not found.is_available:
        return [f"{spec.name}: not here: {found.reason or 'its probe gave no reason'}"]
    return [
        f"{spec.name}: {spec.summary}",
        f"  graphs: {', '.join(f'{stroke} {spec.dialect[stroke]}' for stroke in Stroke)}",
        *(line for device in found.devices for line in _device_lines(spec, device)),
    ]


def _device_lines(spec: BackendSpec, device: Device) -> list[str]:
    """The device, and of the host's processor what it can do at most: measured once, then kept."""
    told = f"  device {device.index}: {_device_words(device)}"
    if device.kind != "cpu":
        return [told]
    try:
        backend = spec.open(device, {})
        if not isinstance(backend, Backend):
            return [told]
        try:
            return [told, f"  at most: {device_limits(backend).sentence()}"]
        finally:
            backend.close()
    except Exception as error:  # a stranger's plugin may raise anything
        return [told, f"  cannot be opened: {type(error).__name__}: {error}"]


def _device_words(device: Device) -> str:
    words = [device.name]
    if device.memory_bytes is not None:
        words.append(f"{device.memory_bytes / 2**30:.1f} GiB")
    if device.bandwidth_bytes_per_s is not None:
        words.append(f"{device.bandwidth_bytes_per_s / 1e9:.0f} GB/s")
    words += [f"{key.replace('_', ' ')}: {value}" for key, value in device.details.items()]
    return ", ".join(words)


def _writable(folder: Path) -> str:
    """Tries it: what a folder's modes say is not what a read-only or full disk does.

    A folder that is not there yet is tried where it would be made, and not left behind.
    """
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryDirectory(prefix=".twostroke-", dir=existing) as trial:
            Path(trial, "trial").write_bytes(b"written")
    except OSError as error:
        return f"NOT writable ({error.strerror or error}): set TWOSTROKE_CACHE to a folder that is"
    return "writable"


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
