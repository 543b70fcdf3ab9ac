"""The conformance kit over the in-tree backends; devices that are absent are skipped by name."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import ClassVar

import pytest

from twostroke.backends import BackendSpec
from twostroke.backends.ort import CPU_PROVIDER, OrtSession, onnxruntime, read_placement
from twostroke.backends.ort.placement import RECORD_KEY
from twostroke.testing.conformance import BackendConformance
from twostroke.testing.kit import CHECKS, Subject, conform
from twostroke.types import Stroke
from twostroke_backends import cpu, cuda, directml

FAST = "FastExecutionProvider"  # there is none of that name


class TestCpu(BackendConformance):
    options: ClassVar = {"intra_op_threads": 2}

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return cpu.twostroke_backends()[0]


class TestCpuWithOwnWeights(TestCpu):
    options: ClassVar = {"share_weights": False, "optimization": "none"}


class TestCpuConcatenatingPrefill(TestCpu):
    """Prefill concatenates, decode writes in place: rows are handed over."""

    options: ClassVar = {"share_weights": False}

    @pytest.fixture
    def spec(self) -> BackendSpec:
        dialect = {Stroke.PREFILL: "standard", Stroke.DECODE: "fused"}
        return dataclasses.replace(cpu.twostroke_backends()[0], dialect=dialect)


class TestCpuInHalf(TestCpu):
    """fp16 is computed through fp32 here; it must be right, if not fast."""

    precision = "fp16"


def needs(plugin: ModuleType) -> pytest.MarkDecorator:
    """Skips a class with the probe's reason where there is no device."""
    found = plugin.probe()
    return pytest.mark.skipif(not found.is_available, reason=found.reason)


@pytest.mark.gpu
@needs(cuda)
class TestCuda(BackendConformance):
    precision = "fp16"  # CUDA's attention has no fp32

    @pytest.fixture
    def spec(self) -> BackendSpec:
        return cuda.twostroke_backends()[0]


@needs(directml)
class TestDirectML(BackendConformance):
    @pytest.fixture
    def spec(self) -> BackendSpec:
        return directml.twostroke_backends()[0]


class Unproven(cpu.CpuBackend):
    """Asks for a provider that is not there, and never looks where its nodes went."""

    def open_session(self, graph, stroke):
        options = self.session_options()
        options.add_session_config_entry(RECORD_KEY, "1")
        session = onnxruntime().InferenceSession(str(graph), options, providers=[FAST])
        return OrtSession(graph, session, read_placement(session, FAST))


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_that_is_silently_on_the_cpu_is_caught():
    spec = dataclasses.replace(cpu.twostroke_backends()[0], open=Unproven)
    subject = Subject(spec)
    try:
        card = conform(subject, [check for check in CHECKS if check.name == "placement"])
    finally:
        subject.close()
    assert card.failed == ("placement",), card.to_text()
    assert f"was asked for {FAST}, but runs with" in card.results[0].reason
    assert CPU_PROVIDER in card.results[0].reason
