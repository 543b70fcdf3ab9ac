from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.errors import InstallError
from twostroke.install import (
    RuntimeDistribution,
    check_install,
    installed_runtimes,
    refuse_two_runtimes,
)


def distribution(site: Path, name: str, version: str, *files: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_every_distribution_that_brings_onnxruntime_is_found(tmp_path):
    module = "onnxruntime/__init__.py"
    distribution(tmp_path, "onnxruntime", "1.31.1", module)
    distribution(tmp_path, "onnxruntime-gpu", "1.31.1", module)
    distribution(tmp_path, "ort_nightly_gpu", "1.32.0", module)
    distribution(tmp_path, "onnxruntime-genai", "0.9", "onnxruntime_genai/__init__.py")
    distribution(tmp_path, "onnxruntime-extensions", "0.14", "onnxruntime_extensions/__init__.py")
    distribution(tmp_path, "numpy", "2.4", "numpy/__init__.py")
    found = installed_runtimes([str(tmp_path)])
    assert [str(runtime) for runtime in found] == [
        "onnxruntime 1.31.1",
        "onnxruntime-gpu 1.31.1",
        "ort-nightly-gpu 1.32.0",
    ]


def test_this_environment_has_exactly_one():
    assert len(installed_runtimes()) == 1
    check_install()


def test_two_are_refused_with_the_commands_that_mend_it():
    two = (RuntimeDistribution("onnxruntime", "1"), RuntimeDistribution("onnxruntime-gpu", "2"))
    for check in (refuse_two_runtimes, check_install):
        with pytest.raises(InstallError) as caught:
            check(two)
        assert "onnxruntime 1 and onnxruntime-gpu 2" in str(caught.value)
        assert "`pip uninstall -y onnxruntime onnxruntime-gpu`" in str(caught.value)
        assert 'pip install "twostroke[cpu]"' in str(caught.value)


def test_none_is_refused_unless_it_was_built_from_source(monkeypatch):
    check_install(())  # this environment can import it, wherever it came from
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InstallError, match=r"ONNX Runtime is not installed.*twostroke\[cuda\]"):
        check_install(())
    refuse_two_runtimes(())


@pytest.mark.parametrize("version", ["1.23.2", "1.9", "0.99"])
def test_one_that_cannot_prove_placement_is_refused(version):
    with pytest.raises(InstallError, match=rf"onnxruntime {version} is too old.*1\.24"):
        check_install((RuntimeDistribution("onnxruntime", version),))


@pytest.mark.parametrize("version", ["1.24.4", "1.31.1", "2.0.0", "1.32.0.dev20261101"])
def test_newer_ones_pass(version):
    check_install((RuntimeDistribution("onnxruntime", version),))
