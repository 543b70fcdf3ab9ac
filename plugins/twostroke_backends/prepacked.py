"""Weights once for two sessions: packed weights in a file that both sessions map.

ONNX Runtime packs the weights of matrix products into the layout its kernels want, each session
for itself, in memory that nothing shares: two sessions hold them twice. It can also save a graph
with its packed weights as external data. Two graphs saved alike then read one file, and the
operating system keeps its pages once.

The cache belongs to one bundle, ONNX Runtime version and kind of processor, and lies outside the
bundle: `TWOSTROKE_CACHE`, or the user's cache folder. It is built on first load and is safe to
delete at any time; a damaged one is built again.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostroke.backends.ort import CPU_PROVIDER, FOLDER_KEY, onnxruntime
from twostroke.bundle.manifest import MANIFEST_NAME
from twostroke.file_lock import file_lock
from twostroke.life import heap
from twostroke.source import cache_root
from twostroke_backends import cpu_facts
from twostroke_backends.external_data import SharedData
from twostroke_backends.kernels import Kernels

_FORMAT = "1"  # raised when the layout of a cache entry changes
_FACTS = "facts.json"
_WEIGHTS = "weights.bin"
_PART = ".part"  # ends the names of folders that are being built
_ABANDONED_AFTER_S = 86400.0
_log = logging.getLogger(__name__)
_building = threading.Lock()
_checked: set[tuple[Path, int]] = set()  # entries whose bytes were checked by this process

MakeOptions = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _Build:
    """What an entry is made of."""

    root: Path
    graphs: Sequence[str]
    host: str
    make_options: MakeOptions
    kernels: Kernels | None


class NotPackedError(Exception):
    """There are no packed weights of a bundle; says why and what it costs."""


def packed_root() -> Path:
    """Where packed weights lie."""
    return cache_root() / "prepacked"


def packed_graph(
    graph: Path, optimization: str, make_options: MakeOptions, kernels: Kernels | None = None
) -> Path | None:
    """The packed twin of a bundle's graph, built now where it is not there yet.

    `make_options` answers fresh SessionOptions; `kernels` are the operators that the twin runs on
    beside ONNX Runtime's, and are registered with those options. None where the graph belongs to
    no bundle.

    Raises:
        NotPackedError: the cache cannot be written, or the runtime cannot load the bundle's graphs.
    """
    graphs = _graphs_of_bundle(graph)
    if graph.name not in graphs:
        return None
    root = graph.parent.absolute()
    try:
        host = _host(optimization, graphs, kernels)
        entry = packed_root() / _key(root, host)
        with _building:
            if not _is_whole(entry):
                _build_alone(entry, _Build(root, graphs, host, make_options, kernels))
        return entry / graph.name
    except Exception as error:  # a cache must not stop a start: no space, no right to write
        raise NotPackedError(
            f"the packed weights of {root} cannot be cached in {packed_root()} ({error}): both "
            "sessions keep their own copy in memory; set TWOSTROKE_CACHE to a folder with space"
        ) from error


def discard(entry: Path) -> None:
    """Removes a cache entry, as far as the system allows it (mapped files stay on Windows)."""
    shutil.rmtree(entry, ignore_errors=True)


def _graphs_of_bundle(graph: Path) -> tuple[str, ...]:
    """File names of the bundle's graphs that read the same weights: those of the same dialect, cut
    in the same place. Empty where there is no bundle.
    """
    try:
        manifest = json.loads((graph.parent / MANIFEST_NAME).read_text(encoding="utf-8"))
        dialects = {str(fact["file"]): fact["dialect"] for fact in manifest["graphs"]}
        kinds: dict[str, object] = dict(dialects)
        for cut in manifest.get("cuts", ()):
            for half in ("front", "back"):
                kinds[cut[half]] = (dialects[cut["file"]], cut["num_front_layers"], half)
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(name for name in kinds if kinds[name] == kinds.get(graph.name))


def _host(optimization: str, graphs: Sequence[str], kernels: Kernels | None) -> str:
    """What the packed bytes depend on beside the bundle; each dialect has an entry of its own."""
    runtime = onnxruntime().__version__
    own = [] if kernels is None else [kernels.identity]
    return "\n".join((_FORMAT, runtime, cpu_facts.cpu_kind(), optimization, *own, *graphs))


def _key(root: Path, host: str) -> str:
    """The entry's name: the hashes of all the bundle's files, which the manifest holds.

    What else the manifest says may be added to, and the packed weights stay as good.
    """
    facts = json.loads((root / MANIFEST_NAME).read_bytes())
    files = json.dumps(facts.get("files"), sort_keys=True)
    return hashlib.sha256(f"{files}\n{host}".encode()).hexdigest()[:32]


def _build_alone(entry: Path, build: _Build) -> None:
    """Builds an entry while no other process does; takes theirs where they were faster."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(entry.parent / "lock", lambda: None):
        if not _is_whole(entry):
            discard(entry)
            _build(entry, build)


def _build(entry: Path, build: _Build) -> None:
    """Saves every graph with its packed weights, then puts the entry in place as a whole."""
    with _staging(entry) as folder:
        shared = SharedData(folder / _WEIGHTS)
        for name in build.graphs:
            _take_graph(build, name, folder, shared)
            give_memory_back()
        files = {path.name: _fact(path) for path in folder.iterdir()}
        facts = {"bundle": str(build.root), "host": build.host, "files": files}
        (folder / _FACTS).write_text(json.dumps(facts, indent=2), encoding="utf-8")
        for path in folder.iterdir():
            _flush(path)
        folder.rename(entry)
    _drop_superseded(entry, build.root, build.host)
    _log.info("packed the weights of %s into %s", build.root, entry)


def _take_graph(build: _Build, name: str, folder: Path, shared: SharedData) -> None:
    """Puts one graph into the entry that is being built, and its weights into the shared file."""
    saved = folder / f"{name}.saved"
    saved.mkdir()
    _save_packed(build.root / name, saved / name, build.make_options(), build.kernels)
    (folder / name).write_bytes(shared.take(saved / name, saved / _WEIGHTS))
    shutil.rmtree(saved)


def _save_packed(graph: Path, out: Path, options: Any, kernels: Kernels | None) -> None:
    """Has ONNX Runtime write what it makes of a graph, on `kernels` where they are given."""
    content: str | bytes = str(graph)
    swapped = None if kernels is None else kernels.swapped(graph)
    if swapped is not None and swapped.packed:
        values = [onnxruntime().OrtValue.ortvalue_from_numpy(w) for w in swapped.packed.values()]
        options.add_external_initializers(list(swapped.packed), values)
        options.add_session_config_entry(FOLDER_KEY, str(graph.parent))
        content = swapped.model
    options.optimized_model_filepath = str(out)
    for key, value in (
        ("session.save_external_prepacked_constant_initializers", "1"),
        ("session.optimized_model_external_initializers_file_name", _WEIGHTS),
        ("session.optimized_model_external_initializers_min_size_in_bytes", "256"),
    ):
        options.add_session_config_entry(key, value)
    onnxruntime().InferenceSession(content, options, providers=[CPU_PROVIDER])


def give_memory_back() -> None:
    """Has the C library return what making a session freed; takes about 30 ms.

    It would keep most of it for reuse, and dropped sessions wait for the collector, because
    onnxruntime's wrapper refers to itself.
    """
    gc.collect()
    heap.give_memory_back()


@contextmanager
def _staging(entry: Path) -> Iterator[Path]:
    """A temporary folder beside the entry; whatever is left of it is removed."""
    for leftover in entry.parent.glob(f".*{_PART}"):  # of a process that was killed
        if time.time() - leftover.stat().st_mtime > _ABANDONED_AFTER_S:
            discard(leftover)
    folder = Path(tempfile.mkdtemp(prefix=".", suffix=_PART, dir=entry.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fact(path: Path) -> dict[str, int]:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return {"num_bytes": path.stat().st_size, "crc32": checksum}


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _is_whole(entry: Path) -> bool:
    """Whether every file of an entry has its size and checksum (read once in a process)."""
    try:
        facts = entry / _FACTS
        stamp = (entry, facts.stat().st_mtime_ns)
        files = json.loads(facts.read_text(encoding="utf-8"))["files"]
        if any((entry / name).stat().st_size != fact["num_bytes"] for name, fact in files.items()):
            return False
        if stamp not in _checked and any(_fact(entry / n) != fact for n, fact in files.items()):
            return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    _checked.add(stamp)
    return True


def _drop_superseded(entry: Path, root: Path, host: str) -> None:
    """Removes other entries of the same bundle folder on this host: it was exported again."""
    for path in entry.parent.glob(f"[!.]*/{_FACTS}"):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            superseded = (facts["bundle"], facts["host"]) == (str(root), host)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if superseded and path.parent != entry:
            discard(path.parent)
