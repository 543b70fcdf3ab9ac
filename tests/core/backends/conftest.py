"""Distributions made of a few files, so that discovery meets what pip would have installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GOOD = """
from twostroke.backends import BackendSpec, Device, ProbeResult, hookimpl

@hookimpl
def twostroke_backends():
    device = Device(0, "a box", "npu")
    return [BackendSpec({name!r}, {api}, "a test", lambda: ProbeResult((device,)), None)]
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Writes a distribution with one entry point onto sys.path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    modules = []

    def write(
        distribution: str,
        source: str | None = None,
        *,
        entry: str = "acme",
        backend: str = "acme",
        api: int = 1,
        version: str = "1.2.3",
    ) -> Path:
        module = f"{distribution.replace('-', '_')}_module"
        modules.append(module)
        text = GOOD.format(name=backend, api=api) if source is None else source
        (site / f"{module}.py").write_text(text, encoding="utf-8")
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(
            f"[twostroke]\n{entry} = {module}\n", encoding="utf-8"
        )
        return site / f"{module}.py"

    yield write
    for module in modules:
        sys.modules.pop(module, None)
