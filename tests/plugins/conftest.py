"""Fixtures of the in-tree backends: a cache folder of the test's own, and tiny bundles."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.backends import Device
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packed weights go to a folder of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TWOSTROKE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny fp32 bundle; shared, so not to be changed."""
    return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture
def bundle(tiny: Path) -> Path:
    """The tiny bundle, under the name that tests of one bundle read best with."""
    return tiny


@pytest.fixture(scope="session")
def uneven_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny`, but prefill holds a weight that decode does not."""
    model = TinyModel(extra_prefill_weight=True)
    return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "uneven", model)


@pytest.fixture
def device() -> Device:
    """What a probe would have answered."""
    return Device(0, "a device", "cpu")
