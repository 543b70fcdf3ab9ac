"""The conformance kit is the whole test of a backend: `pytest` in this folder."""

from __future__ import annotations

from typing import ClassVar

import coolcpu
import pytest

from twostroke.backends import BackendSpec
from twostroke.testing.conformance import BackendConformance


class TestCoolCpu(BackendConformance):
    options: ClassVar = {"threads": 2}

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return coolcpu.twostroke_backends()[0]
