"""Fixtures of the rooms that run `twostroke` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def echo_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the echo backend is installed like any stranger's plugin.

    A folder on PYTHONPATH with a `.dist-info` is an installed distribution to importlib.metadata,
    and its entry points are found as those of a pip install are.
    """
    site = tmp_path_factory.mktemp("site")
    info = site / "echo_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[twostroke]\necho = twostroke.testing.echo\n")
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **{name: value for name, value in os.environ.items() if name != "TWOSTROKE_DEBUG"},
        "PYTHONPATH": os.pathsep.join([str(site), *inherited]),
        "PYTHONIOENCODING": "utf-8",
        "TWOSTROKE_CACHE": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture(scope="session")
def echo_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that the echo backend runs; shared, so not to be changed."""
    from twostroke.testing import make_echo_bundle

    return make_echo_bundle(tmp_path_factory.mktemp("bundles") / "echo")


@pytest.fixture
def twostroke(echo_environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs the command in an empty folder to its end and answers what it wrote."""

    def run(
        *arguments: object, stdin: str = "", timeout_s: float = 180, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "twostroke", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout_s,
            cwd=tmp_path,
            env={**echo_environment, **variables},
            check=False,
        )

    return run
