"""Exports in a process of their own: what comes back, and that none outlives its use."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.backends.hookspecs import ExportOptions, Progress
from twostroke.bundle import is_bundle
from twostroke.errors import BundleError, ExportError
from twostroke.exporting import run_export
from twostroke.source import resolve_source

# Each source of this exporter is a behaviour; `here` answers the process it ran in.
EXPORTER = """
import logging, os, pathlib, time
from twostroke.backends import ExporterSpec, Progress, hookimpl
from twostroke.bundle import sealing
from twostroke.errors import BundleError
from twostroke.testing import make_echo_bundle

def export(options, progress):
    what = pathlib.Path(options.source).name
    progress(Progress(f"in process {os.getpid()}", 0.25))
    if what == "talkative":
        print("a library prints")
        logging.getLogger("stranger").warning("%s of %s", "logged", what)
    if what == "refused":
        raise BundleError("the disk is full")
    if what == "faulty":
        raise ZeroDivisionError("a fault")
    if what == "killed":
        os.kill(os.getpid(), 9)
    if what == "endless":
        with sealing(options.out) as folder:
            (folder / "half").touch()
            progress(Progress("half", 0.5))
            time.sleep(600)
    return make_echo_bundle(options.out, name=options.name or "unnamed")

@hookimpl
def twostroke_exporters():
    return [ExporterSpec("stranger", 1, "for tests", ("int8",), export)]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    info = folder / "stranger_export-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger-export\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[twostroke]\nstranger = stranger_export\n")
    (folder / "stranger_export.py").write_text(EXPORTER)
    monkeypatch.syspath_prepend(str(folder))
    return folder


Run = Callable[..., Path]


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    def run(what: str, progress: Callable[[Progress], None] = lambda _: None) -> Path:
        plugins = load_plugins(block=["export"])
        options = ExportOptions(what, tmp_path / "out" / "bundle", name="mine")
        return run_export(plugins.exporters["stranger"], plugins, options, progress)

    return run


def test_a_bundle_is_made_in_another_process(run, tmp_path):
    seen: list[Progress] = []
    made = run("good", seen.append)
    assert made == tmp_path / "out" / "bundle"
    assert is_bundle(made)
    assert [progress.fraction for progress in seen] == [0.25]
    number = int(seen[0].stage.removeprefix("in process "))
    assert number != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_log_records_arrive_here_and_prints_do_not_disturb(run, caplog, capfd):
    assert is_bundle(run("talkative"))
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("stranger", logging.WARNING, "logged of talkative")
    ]
    assert capfd.readouterr() == ("", "a library prints\n")


@pytest.mark.parametrize(
    ("what", "kind", "expected"),
    [
        ("refused", BundleError, r"^the disk is full$"),
        ("faulty", ExportError, r"^The export of faulty failed unexpectedly: ZeroDivisionError"),
        ("killed", ExportError, r"exported killed was killed by signal 9; is there enough memory"),
    ],
)
def test_failures_are_raised_here(run, what, kind, expected):
    with pytest.raises(kind, match=expected):
        run(what)


class Enough(BaseException):
    pass


def test_whoever_stops_asking_ends_it(run, tmp_path):
    def stop(progress: Progress) -> None:
        if progress.stage == "half":
            assert os.listdir(tmp_path / "out")
            raise Enough

    with pytest.raises(Enough):
        run("endless", stop)
    assert os.listdir(tmp_path / "out") == []


def test_an_exporter_that_was_handed_over_runs_here(site, tmp_path):
    import stranger_export

    plugins = load_plugins(block=["export", "stranger"], extra=[stranger_export])
    seen: list[Progress] = []
    options = ExportOptions("good", tmp_path / "bundle")
    run_export(plugins.exporters["stranger"], plugins, options, seen.append)
    assert seen[0].stage == f"in process {os.getpid()}"


def test_the_cache_is_filled_from_another_process(site, tmp_path, monkeypatch):
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "good").touch()
    seen: list[Progress] = []
    made = resolve_source(
        str(tmp_path / "good"),
        precision="int8",
        context_tokens=None,
        plugins=load_plugins(block=["export"]),
        progress=seen.append,
    )
    assert is_bundle(made)
    assert seen[0].stage != f"in process {os.getpid()}"


PARENT = """
import sys
from pathlib import Path
from twostroke.backends.discovery import load_plugins
from twostroke.backends.hookspecs import ExportOptions
from twostroke.cli.termination import terminable
from twostroke.exporting import run_export

def show(progress):
    print(progress.stage, flush=True)

if __name__ == "__main__":
    plugins = load_plugins(block=["export"])
    options = ExportOptions("endless", Path(sys.argv[1]))
    with terminable():
        run_export(plugins.exporters["stranger"], plugins, options, show)
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_parent_that_is_ended_takes_it_along(site, tmp_path, number):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = tmp_path / "out" / "bundle"
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        child = int(process.stdout.readline().removeprefix("in process "))
        assert process.stdout.readline() == "half\n"
        process.send_signal(number)
        process.wait(120)
    deadline_s = time.monotonic() + 120
    while is_running(child):
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.05)
    assert os.listdir(out.parent) == []


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
