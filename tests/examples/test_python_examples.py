"""The Python examples run as they stand: on the echo backend, and on the demo model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twostroke.testing import make_echo_bundle

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str, source: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, source],
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        env={**environment, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def echo_yaml(tmp_path: Path) -> Path:
    """A YAML file that names the echo backend, installed as a stranger's plugin would be."""
    make_echo_bundle(tmp_path / "bundle")
    info = tmp_path / "site" / "echo_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[twostroke]\necho = twostroke.testing.echo\n")
    path = tmp_path / "config.yaml"
    path.write_text("models:\n  - {name: echo, source: ./bundle, backend: echo}\n")
    return path


@pytest.fixture
def echo_environment(echo_yaml: Path) -> dict[str, str]:
    paths = [str(echo_yaml.parent / "site"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_quickstart(echo_yaml: Path, echo_environment: dict[str, str]) -> None:
    first, *_, last = run("quickstart.py", echo_yaml, echo_environment).splitlines()
    assert first == "→The capital of France i"  # 24 tokens
    assert last.startswith("38 tokens, first after ")


def test_several_at_once(echo_yaml: Path, echo_environment: dict[str, str]) -> None:
    lines = run("several_at_once.py", echo_yaml, echo_environment).splitlines()
    assert {line.split("]")[0] for line in lines} == {"[1", "[2", "[3"}


@pytest.mark.slow
def test_quickstart_on_the_demo_model(demo_bundle_fp32: Path) -> None:
    output = run("quickstart.py", demo_bundle_fp32, dict(os.environ))
    assert output.splitlines()[0].startswith(" Paris")
    assert "Paris" in output.splitlines()[-2]
