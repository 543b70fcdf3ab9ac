"""Backends that are broken on purpose: the echo backend with a part replaced."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from twostroke.testing import echo
from twostroke.testing.echo_session import EchoBinding, EchoSession
from twostroke.testing.kit import CHECKS, Subject, conform
from twostroke.testing.kit.bundles import KitBundle, echo_bundle

HONEST = echo.twostroke_backends()[0]


def broken_spec(*, binding=EchoBinding, session=EchoSession, backend=echo.EchoBackend, **changes):
    """The echo backend's spec with parts of what it opens replaced by others."""

    class Session(session):
        def bind(self, inputs, outputs):
            super().bind(inputs, outputs)
            sides = [{name: b.values for name, b in side.items()} for side in (inputs, outputs)]
            return binding(self, *sides)

    class Backend(backend):
        def open_session(self, graph, stroke):
            return Session(self, super().open_session(graph, stroke).graph, stroke)

    def open_broken(device, options):
        return Backend(device, echo.parse_options(options))

    return dataclasses.replace(HONEST, **{"open": open_broken, **changes})


@pytest.fixture(scope="session")
def shared_echo(tmp_path_factory) -> KitBundle:
    """The kit's echo bundles, which another echo backend can read too."""
    made = echo_bundle(tmp_path_factory.mktemp("kit"))
    return dataclasses.replace(made, is_portable=True)


@pytest.fixture
def examine(shared_echo):
    """Runs the whole kit, or one check of it, on a spec and answers the card.

    The whole is without the check of memory, which takes as long as all others together.
    """

    def run(spec, check=None, **settings):
        subject = Subject(spec, make_bundle=lambda _: shared_echo, partner=HONEST, **settings)
        try:
            fast = [c for c in CHECKS if c.name != "memory-flat"]
            chosen = fast if check is None else [c for c in CHECKS if c.name == check]
            return conform(subject, chosen)
        finally:
            subject.close()

    return run


@pytest.fixture
def break_echo():
    return functools.partial(broken_spec)


@pytest.fixture
def assert_caught(examine):
    """The whole kit finds this fault, in this check, in these words; `alone`: and no other."""

    def run(spec, check, fault, alone=True, **settings):
        card = examine(spec, check if check == "memory-flat" else None, **settings)
        reasons = {result.check: result.reason for result in card.results}
        assert check in card.failed, card.to_text()
        assert fault in reasons[check]
        if alone:
            assert card.failed == (check,), card.to_text()
        return card

    return run
