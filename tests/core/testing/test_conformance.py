"""The kit passes the echo backend in all its forms, as pytest tests and as a card."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from twostroke.backends.capabilities import CHOSEN_BY_OPTIONS
from twostroke.backends.protocol import ProbeResult
from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import Quantisation
from twostroke.testing import echo
from twostroke.testing.conformance import BackendConformance
from twostroke.testing.kit import (
    CHECKS,
    KitBundle,
    Outcome,
    Subject,
    Verdict,
    closing_line,
    conform,
)
from twostroke.testing.kit.card import Card, Result
from twostroke.testing.onnx_bundles import make_onnx_bundle
from twostroke.types import Stroke

HONEST = echo.twostroke_backends()[0]


class TestEcho(BackendConformance):
    tolerance = 0.0

    @pytest.fixture
    def spec(self):
        return HONEST


class TestEchoWithoutRowViews(TestEcho):
    options = {"row_views": False}  # noqa: RUF012 - nobody changes it


class TestEchoMixed(TestEcho):
    """Prefill grows a cache, decode writes in place: rows are handed over."""

    @pytest.fixture
    def spec(self):
        dialect = {Stroke.PREFILL: "standard", Stroke.DECODE: "fused"}
        return dataclasses.replace(HONEST, dialect=dialect)


class TestEchoWithMemoryOfItsOwn(TestEcho):
    options = {"lazy": False}  # noqa: RUF012 - nobody changes it


class TestEchoWithRowsOfTheirOwn(TestEcho):
    options = {"lazy": False, "row_views": False}  # noqa: RUF012 - nobody changes it


def test_names_are_unique_and_what_is_checked_is_told():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.about for check in CHECKS)


def test_without_a_device_the_card_says_why(examine):
    nothing = ProbeResult(reason="no such device on the test bench")
    card = examine(dataclasses.replace(HONEST, probe=lambda: nothing))
    assert card.verdict is Verdict.ABSENT
    assert card.to_text().splitlines() == [
        "echo on no device",
        "  probe            passed   devices 0",
        "  spec             passed   API version 1",
        "echo: not here: no such device on the test bench",
    ]
    assert all(result.reason == nothing.reason for result in card.results[2:])


def test_a_device_that_is_not_there_is_skipped_by_its_number(examine):
    card = examine(HONEST, "decode", device_index=3)
    assert [(r.outcome, r.reason) for r in card.results] == [
        (Outcome.SKIPPED, "there is no device 3")
    ]
    assert card.verdict is Verdict.ABSENT
    assert card.sentence() == "echo: nothing was proved, every check was skipped"


def test_a_device_that_options_choose_is_not_there_without_any(examine):
    (device,) = echo.probe().devices
    found = ProbeResult((dataclasses.replace(device, capabilities=frozenset({CHOSEN_BY_OPTIONS})),))
    spec = dataclasses.replace(HONEST, probe=lambda: found)
    assert examine(spec).absence == "its device is chosen by its options, and there are none."
    assert examine(spec, "decode", options={"lazy": True}).verdict is Verdict.PASSES


def test_the_card_as_json_and_as_text():
    results = (
        Result("decode", Outcome.PASSED, figures={"largest relative difference": 3.21e-7}),
        Result("cancel", Outcome.FAILED, "read to the end"),
    )
    card = Card("mine", "a card", {"threads": 2}, results)
    assert card.to_text().splitlines() == [
        "mine on a card (threads=2)",
        "  decode           passed   largest relative difference 3.2e-07",
        "  cancel           failed   read to the end",
        "mine: fails (1 passed, 1 failed)",
    ]
    told = json.loads(json.dumps(card.to_json()))
    assert told["verdict"] == "fails"
    assert told["results"][1]["reason"] == "read to the end"
    assert Card.from_json(told) == card
    passing = dataclasses.replace(card, results=results[:1])
    absent = Card("cuda", "", {}, (), "no GPU")
    assert closing_line([card, passing, absent]) == "conformance: 1 of 2 backends"


def test_a_bundle_without_a_reference_is_held_against_the_partner(break_echo, shared_echo):
    class Loud(echo.EchoBackend):
        name = "loud"

    spec = break_echo(backend=Loud, name="loud")
    bundle = dataclasses.replace(shared_echo, reference=None)
    checks = [check for check in CHECKS if check.name.startswith("parity")]
    for partner, outcome in ((HONEST, Outcome.PASSED), (None, Outcome.SKIPPED)):
        subject = Subject(spec, make_bundle=lambda _: bundle, partner=partner)
        try:
            card = conform(subject, checks)
        finally:
            subject.close()
        assert {result.outcome for result in card.results} == {outcome}, card.to_text()


def test_the_tolerance_is_that_of_the_weights(tmp_path):
    made = make_onnx_bundle(tmp_path / "made")

    def told(precision, tolerance=None):
        subject = Subject(HONEST, tolerance=tolerance, make_bundle=lambda _: KitBundle(made))
        bundle = open_bundle(made)
        change = {"quantisation": Quantisation(precision=precision)}
        graphs = tuple(each.model_copy(update=change) for each in bundle.manifest.graphs)
        manifest = bundle.manifest.model_copy(update={"graphs": graphs})
        subject.opened_bundle = dataclasses.replace(bundle, manifest=manifest)
        return subject.tolerance

    assert (told("fp32"), told("fp16"), told("int8"), told("int8", 0.5)) == (1e-3, 2e-2, 5e-2, 0.5)


AUTHORS_TEST = """
import pytest
from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import Quantisation
from twostroke.testing import echo
from twostroke.testing.conformance import BackendConformance

class TestMine(BackendConformance):
    @pytest.fixture
    def spec(self):
        return echo.twostroke_backends()[0]
"""


@pytest.mark.parametrize(("flags", "is_printed"), [((), True), (("-q",), False)])
def test_an_author_sees_the_card_after_the_tests(tmp_path, flags, is_printed):
    (tmp_path / "test_mine.py").write_text(AUTHORS_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags, "test_mine.py"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert ("echo: passes (" in done.stdout) is is_printed


def test_the_references_are_those_of_the_graphs():
    """Numpy's logits depend on each token before, and on none after."""
    from twostroke.testing.tiny_model import TinyModel, tiny_logits

    model = TinyModel()
    whole = tiny_logits(model, [5, 6, 7, 8])
    assert whole.shape == (4, model.vocab_size)
    assert np.allclose(tiny_logits(model, [5, 6]), whole[:2])
    assert not np.allclose(tiny_logits(model, [6, 5])[1], whole[1])
