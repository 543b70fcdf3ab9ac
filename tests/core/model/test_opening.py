from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twostroke.backends import BackendSpec, Placement, ProbeResult, hookimpl
from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.config.schema import ModelConfig
from twostroke.errors import (
    BackendError,
    BackendUnavailableError,
    BundleError,
    ConfigError,
    OutOfMemoryError,
    PlacementError,
)
from twostroke.model import Model
from twostroke.model.dialects import exported_dialects
from twostroke.testing import echo, make_echo_bundle
from twostroke.types import Stroke

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


def test_what_a_backend_has_to_say_stands_with_its_placement(
    open_model: OpenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model()
    assert model.placement_report["decode"]["details"] == {}
    kind = type(model._opened.opened["decode"].backend)
    monkeypatch.setattr(kind, "report", lambda self: {"records_runs": True}, raising=False)
    assert model.placement_report["decode"]["details"] == {"records_runs": True}


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


def named(name: str, dialect: Mapping[Stroke, str]) -> BackendSpec:
    """A backend that knows its own name, as every other than the echo backend does."""
    kind = type("Named", (echo.EchoBackend,), {"name": name})
    return spec(name=name, dialect=dialect, open=lambda d, o: kind(d, echo.parse_options(o)))


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


def wanting(dialect: str) -> Plugins:
    """Plugins whose backend `other` wants graphs of a dialect for both strokes."""
    return plugins_with(spec(name="other", dialect=dict.fromkeys(Stroke, dialect)))


@pytest.fixture(scope="module")
def both_dialects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "both"
    return make_echo_bundle(folder, dialects=("fused", "standard"))


@pytest.fixture(scope="module")
def standard_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_echo_bundle(tmp_path_factory.mktemp("bundles") / "plain", dialects=("standard",))


def told(model: Model, fact: str) -> list[str]:
    return [model.placement_report[stroke.value][fact] for stroke in Stroke]


def test_each_stroke_gets_the_graph_that_its_backend_wants(
    open_model: OpenModel, both_dialects: Path
) -> None:
    model = open_model(both_dialects, plugins=wanting("standard"), prefill={"backend": "other"})
    assert told(model, "dialect") == ["standard", "fused"]
    assert told(model, "precision") == ["fp32", "fp32"]
    assert model.complete("abc").text == "→abc"
    assert told(open_model(both_dialects), "dialect") == ["fused", "fused"]


def test_the_yaml_has_the_last_word_on_the_dialect(
    open_model: OpenModel, both_dialects: Path
) -> None:
    model = open_model(both_dialects, decode={"dialect": "standard"})
    assert told(model, "dialect") == ["fused", "standard"]
    assert model.complete("abc").text == "→abc"


def test_a_dialect_that_the_yaml_asks_for_and_the_bundle_lacks_ends_the_start(
    open_model: OpenModel, echo_path: Path, standard_only: Path
) -> None:
    with pytest.raises(BundleError, match=r"only a fused prefill graph.*asks for a standard one"):
        open_model(prefill={"dialect": "standard"}, fallback=["echo"])
    with pytest.raises(BundleError, match=r"only a standard decode graph.*--dialect fused`"):
        open_model(standard_only, decode={"dialect": "fused"})


def test_a_backend_that_wants_plain_operators_refuses_fused_ones(open_model: OpenModel) -> None:
    words = r"fused prefill graph, and the backend 'echo' wants a standard one.*--dialect both"
    with pytest.raises(PlacementError, match=words):
        open_model(plugins=wanting("standard"), backend="other")


def test_another_backend_may_take_over_where_one_gets_no_graph(open_model: OpenModel) -> None:
    plugins = plugins_with(named("other", dict.fromkeys(Stroke, "standard")))
    model = open_model(plugins=plugins, backend="other", fallback=["echo"])
    assert "wants a standard one" in (model.fallback_sentence or "")
    assert told(model, "backend") == ["echo", "echo"]


def test_plain_operators_run_where_fused_ones_are_wanted_and_a_warning_says_so(
    open_model: OpenModel, standard_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = open_model(standard_only)
    assert told(model, "dialect") == ["standard", "standard"]
    assert "has no fused prefill graph" in caplog.text
    assert "sequences decode one at a time" in caplog.text
    assert model.complete("abc").text == "→abc"


def test_an_export_makes_what_the_backends_want(both_dialects: Path) -> None:
    def exported(plugins: Plugins, **settings: Any) -> tuple[str, ...]:
        model = ModelConfig(name="m", source="s", **settings)
        return exported_dialects(model, plugins)

    plugins = wanting("standard")
    assert exported(plugins, backend="echo") == ("fused",)
    assert exported(plugins, backend="other") == ("standard",)
    assert exported(plugins, backend="echo", prefill={"backend": "other"}) == ("fused", "standard")
    assert exported(plugins, backend="other", prefill={"dialect": "fused"}) == ("fused", "standard")
    assert exported(plugins, backend="nobody") == ("fused",)
    high = plugins_with(spec(name="other", priority=999, dialect=dict.fromkeys(Stroke, "standard")))
    assert exported(high) == ("standard",)
