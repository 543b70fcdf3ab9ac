"""The conformance kit as pytest tests: one class to inherit, one fixture to give.

    from twostroke.testing.conformance import BackendConformance

    class TestMine(BackendConformance):
        options = {"threads": 1}

        @pytest.fixture
        def spec(self):
            return my_plugin.twostroke_backends()[0]

Each check is a test; a check that has nothing to look at is skipped with the reason, which is the
probe's where there is no device. Afterwards the report card is printed, unless `-q` is given. The
bundles come with the kit. Needs pytest; `twostroke conformance NAME` runs the same without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from twostroke.backends.discovery import load_plugins
from twostroke.backends.protocol import BackendSpec
from twostroke.testing.kit import CHECKS, Check, KitBundle, Outcome, Result, Subject, card_of
from twostroke.testing.kit.bundles import bundle_maker


class BackendConformance:
    """What every backend must do. Override the fixture `spec`; the rest where it must be.

    `options` are some that the backend takes, on the device of `device_index`. `precision` is that
    of the graphs: fp32, or fp16 for devices whose attention has no other. `tolerance` bounds the
    difference of logits, from the reference and between two ways to one answer, as a share of the
    largest logit; None: 0.001 in fp32, 0.02 in fp16.
    """

    options: Mapping[str, Any] = {}
    device_index: int = 0
    tolerance: float | None = None
    precision: str = "fp32"

    _subject: ClassVar[Subject | None] = None
    _results: ClassVar[list[Result]] = []

    @pytest.fixture
    def spec(self) -> BackendSpec:
        """The backend under test."""
        pytest.fail("override the fixture `spec` to answer your BackendSpec")

    def make_bundle(self, spec: BackendSpec, folder: Path) -> KitBundle:
        """Writes the bundle to test on into `folder`: the kit's own, unless it is overridden."""
        return bundle_maker(spec, self.precision)(folder)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _report(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        cls._subject, cls._results = None, []
        yield
        if cls._subject is None:
            return
        cls._subject.close()
        capture = request.config.pluginmanager.getplugin("capturemanager")
        if request.config.option.verbose >= 0 and capture is not None:
            with capture.global_and_fixture_disabled():
                print(f"\n\n{card_of(cls._subject, cls._results).to_text()}")

    @pytest.fixture
    def subject(self, spec: BackendSpec) -> Subject:
        """The backend as the checks see it, opened once for all tests of the class."""
        cls = type(self)
        if cls._subject is None:
            cls._subject = Subject(
                spec,
                self.options,
                device_index=self.device_index,
                tolerance=self.tolerance,
                make_bundle=lambda folder: self.make_bundle(spec, folder),
                partner=load_plugins().backends.get("cpu"),
            )
        return cls._subject

    @pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
    def test_conforms(self, check: Check, subject: Subject) -> None:
        """The backend passes the check, or there is nothing to check."""
        result = check.result(subject)
        type(self)._results.append(result)
        if result.outcome is Outcome.SKIPPED:
            pytest.skip(result.reason)
        if result.outcome is Outcome.FAILED:
            pytest.fail(f"{check.about}? {result.reason}", pytrace=False)


__all__ = ["BackendConformance", "KitBundle"]
