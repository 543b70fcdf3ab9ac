"""Where `backend: auto` has prompts read, and what it says of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twostroke.backends import BackendSpec, ProbeResult, hookimpl
from twostroke.backends.capabilities import READS_FASTER
from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.config.schema import ModelConfig
from twostroke.errors import BackendUnavailableError, OutOfMemoryError
from twostroke.model import Model
from twostroke.model.dialects import exported_dialects
from twostroke.testing import echo, make_echo_bundle
from twostroke.types import Stroke


def reading(**changes: Any) -> BackendSpec:
    """A backend that reads prompts faster than the processor's own, from plain graphs."""
    device = dataclasses.replace(echo.probe().devices[0], capabilities=frozenset({READS_FASTER}))
    given = {
        "name": "reading",
        "priority": -2000,  # below even the echo backend
        "probe": lambda: ProbeResult((device,)),
        "dialect": {Stroke.PREFILL: "standard", Stroke.DECODE: "standard"},
        **changes,
    }
    return dataclasses.replace(echo.twostroke_backends()[0], **given)


@pytest.fixture
def both(tmp_path: Path) -> Path:
    return make_echo_bundle(tmp_path / "both", dialects=("fused", "standard"))


def only(*specs: BackendSpec) -> Plugins:
    """No backend of this machine, so that `auto` takes one of these."""
    plugin = SimpleNamespace(twostroke_backends=hookimpl(lambda: list(specs)), __name__="mine")
    blocked = ("cpu", "cuda", "directml", "openvino", "plugin_ep")
    return load_plugins(block=blocked, extra=[echo, plugin])


def test_auto_reads_prompts_where_that_is_faster(
    both: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "twostroke")
    with Model.open(both, plugins=only(reading())) as model:
        requested = {s: o.requested for s, o in model._opened.opened.items()}
        assert requested == {Stroke.PREFILL: "reading", Stroke.DECODE: "auto"}
        report = model.placement_report
        assert (report["prefill"]["dialect"], report["decode"]["dialect"]) == ("standard", "fused")
        note = model.status()["placement_note"]
        assert "reads prompts on reading" in note
        assert "makes answers on echo" in note
        assert note in caplog.text  # never silently
        assert model.status()["fallback"] is None
        assert model.complete("abc").text == "→abc"


def test_auto_says_what_a_bundle_or_a_machine_lacks_for_it(both: Path, echo_path: Path) -> None:
    with Model.open(echo_path, plugins=only(reading())) as model:  # fused graphs only
        assert "--dialect both" in model.status()["placement_note"]
        assert len({id(o.backend) for o in model._opened.opened.values()}) == 1
    absent = ProbeResult(reason="pip install reading.", would_bring="It would read faster.")
    with Model.open(both, plugins=only(reading(probe=lambda: absent))) as model:
        assert model.status()["placement_note"] == "It would read faster. pip install reading."


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailableError("its library is broken.", backend="reading"),
        OutOfMemoryError("there is too little memory."),
    ],
)
def test_auto_reads_where_it_decodes_when_the_faster_place_fails(
    both: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    with Model.open(both, plugins=only(reading(open=fail))) as model:
        assert str(error) in model.status()["placement_note"]
        assert str(error) in caplog.text
        assert model.placement_report["prefill"]["dialect"] == "fused"


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "echo"},
        {"prefill": {"backend": "echo"}},
        {"prefill": {"dialect": "fused"}},
        {"options": {"lazy": False}},
        {"decode": {"options": {"lazy": False}}},
    ],
)
def test_who_says_where_is_not_overruled(both: Path, settings: dict[str, Any]) -> None:
    with Model.open(both, plugins=only(reading()), **settings) as model:
        assert model.placement_report["prefill"]["dialect"] == "fused"
        assert model.status()["placement_note"] is None


def test_an_export_for_auto_holds_what_the_faster_place_wants() -> None:
    model = ModelConfig(name="a", source="a")
    assert exported_dialects(model, only(reading())) == ("fused", "standard")
    assert exported_dialects(model, only()) == ("fused",)
