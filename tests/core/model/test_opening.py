from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twostroke.backends import BackendSpec, Placement, ProbeResult, hookimpl
from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.errors import (
    BackendError,
    BackendUnavailableError,
    ConfigError,
    OutOfMemoryError,
    PlacementError,
)
from twostroke.model import Model
from twostroke.testing import echo

from .conftest import OpenModel


def spec(**changes: Any) -> BackendSpec:
    return dataclasses.replace(echo.twostroke_backends()[0], **changes)


def plugins_with(*specs: BackendSpec) -> Plugins:
    plugin = SimpleNamespace(twostroke_backends=hookimpl(lambda: list(specs)), __name__="mine")
    return load_plugins(extra=[echo, plugin])


def test_one_backend_serves_both_strokes(open_model: OpenModel) -> None:
    model = open_model()
    opened = model._opened.opened
    assert opened["prefill"] is opened["decode"]


def test_each_stroke_may_have_its_own(open_model: OpenModel) -> None:
    model = open_model(
        plugins=plugins_with(spec(name="other")),
        prefill={"backend": "other", "options": {"lazy": False}},
        options={"row_views": False},
    )
    report = model.placement_report
    assert (report["prefill"]["backend"], report["decode"]["backend"]) == ("echo", "echo")
    prefill, decode = (model._opened.opened[stroke] for stroke in ("prefill", "decode"))
    assert prefill.backend is not decode.backend
    assert (prefill.requested, decode.requested) == ("other", "echo")
    assert prefill.backend.options.row_views  # the model's options are for the model's backend
    assert not decode.backend.options.row_views
    assert model.complete("abc").text == "→abc"


def test_options_of_a_stroke_lie_over_the_models(open_model: OpenModel) -> None:
    model = open_model(options={"lazy": False}, decode={"options": {"row_views": False}})
    decode = model._opened.opened["decode"].backend.options
    assert (decode.lazy, decode.row_views) == (False, False)


def test_closing_frees_every_backend(plugins: Plugins, echo_path: Path) -> None:
    model = Model.open(
        echo_path, backend="echo", plugins=plugins, decode={"options": {"lazy": False}}
    )
    backends = [opened.backend for opened in model._opened.opened.values()]
    model.close()
    assert [(b.is_closed, b.num_open_sessions) for b in backends] == [(True, 0), (True, 0)]


def missing() -> BackendSpec:
    return spec(name="missing", probe=lambda: ProbeResult(reason="libmissing.so is not there"))


def test_a_missing_backend_ends_the_start(open_model: OpenModel) -> None:
    with pytest.raises(BackendUnavailableError, match=r"libmissing\.so is not there"):
        open_model(plugins=plugins_with(missing()), backend="missing")


def test_a_fallback_is_taken_only_by_name_and_shows(open_model: OpenModel) -> None:
    model = open_model(plugins=plugins_with(missing()), backend="missing", fallback=["echo"])
    assert model.complete("a").text == "→a"
    sentence = model.status()["fallback"]
    assert "libmissing.so is not there" in sentence
    assert "echo" in sentence


def strayed() -> BackendSpec:
    class Strayed(echo.EchoBackend):
        def open_session(self, graph: Path, stroke: Any) -> Any:
            session = super().open_session(graph, stroke)
            session.close()
            placement = Placement("strayed", {"cpu": 1}, {"MatMul": 1})
            raise PlacementError(f"nodes strayed: {placement.sentence()}")

    return spec(name="strayed", open=lambda d, o: Strayed(d, echo.parse_options(o)))


def test_nodes_elsewhere_end_the_start_unless_a_fallback_is_named(open_model: OpenModel) -> None:
    plugins = plugins_with(strayed())
    with pytest.raises(PlacementError, match="nodes strayed"):
        open_model(plugins=plugins, backend="strayed")
    model = open_model(plugins=plugins, backend="strayed", fallback=["echo"])
    assert "nodes strayed" in (model.fallback_sentence or "")


def test_each_stroke_falls_back_alone(open_model: OpenModel) -> None:
    model = open_model(
        plugins=plugins_with(missing()), prefill={"backend": "missing"}, fallback=["echo"]
    )
    report = model.placement_report
    assert report["prefill"]["requested"] == "missing"
    assert report["decode"]["requested"] == "echo"
    assert model.complete("abc").text == "→abc"


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"backend": "ecko"}, BackendError, "Did you mean 'echo'"),
        ({"options": {"speed": 1}}, BackendError, "no option 'speed'"),
        ({"device": 3}, BackendError, "no device 3"),
        ({"context_tokens": 5_000}, ConfigError, "5000.*512"),
        ({"kv": {"budget": "64B"}}, OutOfMemoryError, "kv.budget"),
        ({"kv": {"dtype": "float16"}}, ConfigError, "float16.*float32.*--activations fp16"),
        ({"kv": {"budget": "much"}}, ConfigError, "kv.budget.*not a size"),
        ({"max_rows": 0}, ConfigError, "max_rows"),
        ({"max_row": 1}, ConfigError, "max_row: unknown setting; did you mean 'max_rows'"),
        ({"fallback": ["ecko"]}, BackendError, "ecko"),
    ],
)
def test_wrong_settings_are_named(
    open_model: OpenModel, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_model(**settings)


def test_settings_reach_the_engine(open_model: OpenModel) -> None:
    model = open_model(context_tokens=64, max_rows=3)
    assert model.context_tokens == 64
    assert model.engine.stats().num_rows == 3


def write_yaml(folder: Path, bundle: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(
        "models:\n"
        f"  - {{name: first, source: '{bundle}', backend: echo}}\n"
        f"  - {{name: second, source: '{bundle}', backend: echo, context_tokens: 100}}\n"
        "scheduler: {max_rows: 2}\n"
    )
    return path


def test_a_yaml_file_opens_one_of_its_models(
    plugins: Plugins, echo_path: Path, tmp_path: Path
) -> None:
    path = write_yaml(tmp_path, echo_path)
    with Model.open(path, plugins=plugins) as model:
        assert (model.name, model.context_tokens) == ("first", 512)
        assert model.engine.stats().num_rows == 2
    with Model.open(path, name="second", plugins=plugins, max_rows=1) as model:
        assert (model.name, model.context_tokens) == ("second", 100)
        assert model.engine.stats().num_rows == 1
    with pytest.raises(ConfigError, match="no model 'third'; it has first, second"):
        Model.open(path, name="third", plugins=plugins)
