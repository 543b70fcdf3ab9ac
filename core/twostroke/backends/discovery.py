"""Finding plugins: every entry point of the group `twostroke`, loaded, blocked or failed.

A plugin that cannot be imported never stops the start by itself: it is recorded with its
distribution, version and error, and `backends.choose` refuses only when its name is asked for.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pluggy

from twostroke.backends import builtin_parsers, hookspecs
from twostroke.backends.hookspecs import ExporterSpec
from twostroke.backends.protocol import API_VERSION, BackendSpec
from twostroke.errors import PluginError
from twostroke.server.surface import Surface
from twostroke.text.parsers import ParserSpec

GROUP = "twostroke"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """What became of one entry point. `status` is loaded, blocked or failed.

    `backends`, `exporters`, `parsers` and `surfaces` are the names it brings; of a plugin that
    failed, the names that it would have brought, as far as they are known.
    """

    name: str
    distribution: str
    version: str
    status: str
    error: str = ""
    backends: tuple[str, ...] = ()
    exporters: tuple[str, ...] = ()
    parsers: tuple[str, ...] = ()
    surfaces: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})".replace(" )", ")")


@dataclass(frozen=True, slots=True)
class Plugins:
    """Everything that was found. Immutable, made once at start-up."""

    backends: Mapping[str, BackendSpec]
    exporters: Mapping[str, ExporterSpec]
    records: tuple[PluginRecord, ...]
    parsers: Mapping[str, ParserSpec] = field(default_factory=dict)
    surfaces: Mapping[str, Surface] = field(default_factory=dict)

    def failure(self, name: str) -> PluginRecord | None:
        """The failed or blocked plugin whose entry point or backend has this name."""
        for record in self.records:
            if record.status != "loaded" and name in (record.name, *record.backends):
                return record
        return None


@dataclass(slots=True)
class _Found:
    """A plugin on its way to a record."""

    record: PluginRecord
    backends: list[BackendSpec] = field(default_factory=list)
    exporters: list[ExporterSpec] = field(default_factory=list)
    parsers: list[ParserSpec] = field(default_factory=list)
    surfaces: list[Surface] = field(default_factory=list)


def load_plugins(block: Iterable[str] = (), extra: Iterable[Any] = ()) -> Plugins:
    """Loads every plugin that is installed, and the objects in `extra`, in that order.

    The parsers that come with twostroke need no entry point: they are always there.

    `block` holds entry-point names, distributions, or `distribution:name` where two entry points
    share a name. Nothing of a blocked plugin is imported.

    Raises:
        PluginError: two plugins bring a backend (exporter, parser, surface) of the same name.
    """
    blocked = frozenset(block)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    own = _collect(manager, builtin_parsers, PluginRecord("parsers", "twostroke", "", "loaded"))
    found = [_from_entry_point(manager, entry, blocked) for entry in _entry_points()]
    for plugin in extra:
        name = getattr(plugin, "__name__", type(plugin).__name__)
        given = PluginRecord(name, "given by the caller", "", "loaded")
        found.append(_collect(manager, plugin, given))
    backends = _by_name("backend", ((f.record, f.backends) for f in found))
    exporters = _by_name("exporter", ((f.record, f.exporters) for f in found))
    parsers = _by_name("parser", ((f.record, f.parsers) for f in (own, *found)))
    surfaces = _by_name("surface", ((f.record, f.surfaces) for f in found))
    return Plugins(
        MappingProxyType(backends),
        MappingProxyType(exporters),
        tuple(f.record for f in found),
        MappingProxyType(parsers),
        MappingProxyType(surfaces),
    )


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    """Our own first, so that a clash is put down to the stranger."""

    def order(entry: importlib.metadata.EntryPoint) -> tuple[bool, str, str]:
        distribution = _distribution(entry)
        return distribution != "twostroke", entry.name, distribution

    return iter(sorted(importlib.metadata.entry_points(group=GROUP), key=order))


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown distribution"


def _from_entry_point(
    manager: pluggy.PluginManager, entry: importlib.metadata.EntryPoint, blocked: frozenset[str]
) -> _Found:
    distribution = _distribution(entry)
    version = entry.dist.version if entry.dist is not None else ""
    record = PluginRecord(entry.name, distribution, version, "loaded")
    if blocked & {entry.name, distribution, f"{distribution}:{entry.name}"}:
        return _Found(replace(record, status="blocked", error="named in `plugins.block`"))
    try:
        plugin = entry.load()
    except (Exception, SystemExit) as error:  # a stranger's import may do anything
        return _failed(record, f"{type(error).__name__}: {error}")
    return _collect(manager, plugin, record)


def _failed(record: PluginRecord, why: str, backends: Sequence[BackendSpec] = ()) -> _Found:
    _log.warning("plugin %s failed: %s", record, why)
    names = tuple(str(spec.name) for spec in backends)
    return _Found(replace(record, status="failed", error=why, backends=names))


def _collect(manager: pluggy.PluginManager, plugin: Any, record: PluginRecord) -> _Found:
    """Registers one plugin and calls its hooks alone, so that a fault is put down to it."""
    name = f"{record.distribution}:{record.name}"
    try:
        manager.register(plugin, name)
        unknown = [
            caller.name for caller in manager.get_hookcallers(plugin) or () if not caller.has_spec()
        ]
        if unknown:
            raise PluginError(f"implements {', '.join(unknown)}, which twostroke does not know")
        backends = _call(manager, "twostroke_backends", name, BackendSpec)
        exporters = _call(manager, "twostroke_exporters", name, ExporterSpec)
        parsers = _call(manager, "twostroke_parsers", name, ParserSpec)
        surfaces = _call(manager, "twostroke_surfaces", name, Surface)
    except (Exception, SystemExit) as error:
        if manager.has_plugin(name):
            manager.unregister(name=name)
        why = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        return _failed(record, why)
    for spec in (*backends, *exporters, *parsers, *surfaces):
        if spec.api_version != API_VERSION:
            newer = spec.api_version > API_VERSION
            return _failed(
                record,
                f"{spec.name} speaks plugin API version {spec.api_version}, this twostroke "
                f"{API_VERSION}; upgrade {'twostroke' if newer else record.distribution}",
                backends,
            )
    record = replace(
        record,
        backends=tuple(spec.name for spec in backends),
        exporters=tuple(spec.name for spec in exporters),
        parsers=tuple(spec.name for spec in parsers),
        surfaces=tuple(spec.name for spec in surfaces),
    )
    return _Found(record, backends, exporters, parsers, surfaces)


def _call(manager: pluggy.PluginManager, hook: str, plugin_name: str, kind: type[Any]) -> list[Any]:
    """What one plugin answers to one hook.

    Raises:
        PluginError: it answers something that is not a sequence of `kind`.
    """
    specs: list[Any] = []
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        if implementation.plugin_name != plugin_name:
            continue
        answer = implementation.function()
        if not isinstance(answer, list | tuple) or not all(isinstance(s, kind) for s in answer):
            raise PluginError(f"{hook} must answer a list of {kind.__name__}, not {answer!r:.80}")
        specs.extend(answer)
    return specs


def _by_name(what: str, brought: Iterable[tuple[PluginRecord, Sequence[Any]]]) -> dict[str, Any]:
    """Specs by name; the names must be unique.

    Raises:
        PluginError: a clash, naming both distributions and how to block one.
    """
    owners: dict[str, PluginRecord] = {}
    specs: dict[str, Any] = {}
    for record, answers in brought:
        for spec in answers:
            if spec.name in specs:
                first = owners[spec.name]
                raise PluginError(
                    f"two plugins bring a {what} named {spec.name!r}: {first} and {record}. "
                    f"Uninstall one, or block it: plugins.block: "
                    f'["{record.distribution}:{record.name}"]'
                )
            owners[spec.name], specs[spec.name] = record, spec
    return specs
