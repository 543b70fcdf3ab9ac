"""The conformance kit is the whole test of a backend: `pytest` in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import coolcpu
import pytest

from twostroke.backends import BackendSpec
from twostroke.testing.conformance import BackendConformance
from twostroke.testing.onnx_bundles import make_onnx_bundle


class TestCoolCpu(BackendConformance):
    options: ClassVar = {"threads": 2}

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return coolcpu.twostroke_backends()[0]

    @pytest.fixture
    def bundle(self, tmp_path: Path) -> Path:
        return make_onnx_bundle(tmp_path / "tiny")
