"""A stranger's package, installed by pip, serves; a broken one is told by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {"backend_plugin": "coolcpu", "surface_plugin": "kobold"}  # folder: module

Command = Callable[..., "subprocess.CompletedProcess[str]"]

BROKEN_PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "acme-npu"
version = "4.5.6"
[project.entry-points.twostroke]
acme = "acme_npu"
[tool.hatch.build.targets.wheel]
only-include = ["acme_npu.py"]
"""


def pip_install(source: Path, target: Path) -> None:
    """Installs a package into a folder, offline: hatchling is here already."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    done = subprocess.run(
        [*pip, *options, str(source)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def with_path(folder: Path) -> dict[str, str]:
    """This environment, with a folder before all else that Python looks in."""
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example plugins and a broken one, installed from copies by pip."""
    work = tmp_path_factory.mktemp("plugins")
    for folder, module in EXAMPLES.items():
        (work / folder).mkdir()
        for name in ("pyproject.toml", f"{module}.py", "README.md"):
            copied = (ROOT / "examples" / folder / name).read_bytes()
            (work / folder / name).write_bytes(copied)
    broken = work / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text(BROKEN_PYPROJECT)
    (broken / "acme_npu.py").write_text("import acme_driver_that_is_not_there\n")
    target = work / "site"
    for source in (*(work / folder for folder in EXAMPLES), broken):
        pip_install(source, target)
    return target


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Command:
    """Runs Python with the plugins on its path."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=with_path(site),
            check=False,
        )

    return run


def test_the_plugins_are_listed_with_what_became_of_them(python):
    said = python("-m", "twostroke", "plugins").stdout
    assert "loaded  coolcpu (twostroke-coolcpu 0.1.0): backend coolcpu" in said
    assert "loaded  kobold (twostroke-kobold 0.1.0): surface kobold" in said
    assert "failed  acme (acme-npu 4.5.6)" in said
    assert "No module named 'acme_driver_that_is_not_there'" in said
    assert "loaded  cpu (twostroke" in said


_GENERATE = """
import sys, twostroke
with twostroke.Model.open(sys.argv[1], backend=sys.argv[2], fallback=sys.argv[3:]) as model:
    answer = model.complete("abc", max_tokens=5, temperature=0, ignore_eos=True)
    print(answer.num_completion_tokens, model.placement_report["decode"]["backend"])
"""


def test_a_strangers_backend_serves(python, tiny):
    done = python("-c", _GENERATE, tiny, "coolcpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "coolcpu"]


def test_a_broken_plugin_stops_the_start_only_where_it_is_named(python, tiny):
    assert python("-c", _GENERATE, tiny, "cpu").stdout.split() == ["5", "cpu"]
    done = python("-c", _GENERATE, tiny, "acme")
    assert done.returncode != 0
    assert "acme (acme-npu 4.5.6) failed: ModuleNotFoundError" in done.stderr
    done = python("-c", _GENERATE, tiny, "acme", "coolcpu")
    assert done.stdout.split() == ["5", "coolcpu"]


@pytest.mark.parametrize(("folder", "module"), EXAMPLES.items())
def test_an_example_passes_its_own_test(site, tmp_path, folder, module):
    copy = tmp_path / f"test_{module}.py"
    copy.write_bytes((ROOT / "examples" / folder / "tests" / copy.name).read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env=with_path(site),
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
