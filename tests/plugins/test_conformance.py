"""The conformance kit over the in-tree backends; devices that are absent are skipped by name."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from twostroke.backends import BackendSpec
from twostroke.testing.conformance import BackendConformance
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.types import Stroke
from twostroke_backends import cpu, cuda, directml


@pytest.fixture(scope="session")
def half_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny fp16 bundle, as CUDA's attention wants it."""
    model = TinyModel(kv_dtype="float16")
    return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "half", model)


class OnTiny(BackendConformance):
    """The kit over the tiny fp32 bundle of this folder's fixtures."""

    @pytest.fixture
    def bundle(self, tiny: Path) -> Path:
        return tiny


class TestCpu(OnTiny):
    options: ClassVar = {"intra_op_threads": 2}

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return cpu.twostroke_backends()[0]


class TestCpuWithOwnWeights(TestCpu):
    options: ClassVar = {"share_weights": False, "optimization": "none"}


class TestCpuConcatenating(TestCpu):
    """The standard dialect: plain operators, a new cache for each run."""

    options: ClassVar = {"share_weights": False}

    @pytest.fixture
    def dialects(self) -> dict[Stroke, str]:
        return dict.fromkeys(Stroke, "standard")

    @pytest.fixture
    def bundle(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        model = TinyModel(dialects=("standard",))
        return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "standard", model)


class TestCpuConcatenatingPrefill(TestCpuConcatenating):
    """Prefill concatenates, decode writes in place: rows are handed over."""

    @pytest.fixture
    def dialects(self) -> dict[Stroke, str]:
        return {Stroke.PREFILL: "standard", Stroke.DECODE: "fused"}

    @pytest.fixture
    def bundle(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        model = TinyModel(dialects=("fused", "standard"))
        return make_onnx_bundle(tmp_path_factory.mktemp("bundles") / "both", model)


class TestCpuInHalf(TestCpu):
    """fp16 is computed through fp32 here; it must be right, if not fast."""

    tolerance = 2e-2

    @pytest.fixture
    def bundle(self, half_bundle: Path) -> Path:
        return half_bundle


def needs(plugin: ModuleType) -> pytest.MarkDecorator:
    """Skips a class with the probe's reason where there is no device."""
    found = plugin.probe()
    return pytest.mark.skipif(not found.is_available, reason=found.reason)


@pytest.mark.gpu
@needs(cuda)
class TestCuda(BackendConformance):
    tolerance = 2e-2

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return cuda.twostroke_backends()[0]

    @pytest.fixture
    def bundle(self, half_bundle: Path) -> Path:
        return half_bundle


@needs(directml)
class TestDirectML(OnTiny):
    @pytest.fixture
    def spec(self) -> BackendSpec:
        return directml.twostroke_backends()[0]
