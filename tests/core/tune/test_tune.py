"""The whole of `tune` on tiny graphs: what is listed, measured, ranked, shown and written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from twostroke.backends.discovery import load_plugins
from twostroke.cli import main
from twostroke.config import load_config
from twostroke.config.schema import ModelConfig, SchedulerConfig
from twostroke.errors import BackendError, ConfigError
from twostroke.testing import echo
from twostroke.tune import TuneSettings, Workload, candidates, tune
from twostroke.tune.edits import Edit, edited, edits
from twostroke.tune.pairs import choose, finalists, ranked
from twostroke.tune.report import as_json, table
from twostroke.types import Stroke

onnx_bundles = pytest.importorskip("twostroke.testing.onnx_bundles")

SHORT = Workload(prompt_tokens=20, answer_tokens=8, streams=(1, 2))
PLUGIN_PROVIDERS = ("openvino", "plugin_ep")
BRIEF = TuneSettings(SHORT, seconds=0.05)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    model = onnx_bundles.TinyModel(dialects=("fused", "standard"))
    return onnx_bundles.make_onnx_bundle(tmp_path_factory.mktemp("tiny") / "bundle", model)


@pytest.fixture(scope="module")
def plugins():
    return load_plugins(block=PLUGIN_PROVIDERS)  # what is installed here should not matter


def model_of(bundle, **settings):
    return ModelConfig(name="tiny", source=str(bundle), **settings)


def quiet(progress):
    assert 0 <= progress.fraction <= 1


@pytest.fixture(scope="module")
def found(bundle, plugins):
    model = model_of(bundle, backend="cpu", options={"intra_op_threads": 1})
    return candidates(model, plugins, BRIEF, quiet)


@pytest.fixture(scope="module")
def tuned(found, plugins):
    return tune(found, SchedulerConfig(prefill_chunk_tokens=16), plugins, BRIEF, quiet)


def test_every_way_is_listed_once_and_the_rest_has_a_reason(found):
    prefills = [v for v in found.variants if v.stroke is Stroke.PREFILL]
    named = {(v.graph.dialect, v.threads) for v in prefills}
    assert len(named) == len(prefills)
    assert {("fused", 1), ("standard", 1)} <= named
    assert [v.is_current for v in prefills] == [True] + [False] * (len(prefills) - 1)
    assert len(found.variants) == 2 * len(prefills)
    reasons = {skipped.what: skipped.reason for skipped in found.skipped}
    assert "driver" in reasons["cuda"]
    assert "Windows" in reasons["directml"]


def test_quick_leaves_out_what_is_rarely_best(bundle, plugins):
    settings = replace(BRIEF, is_quick=True)
    listed = candidates(model_of(bundle, backend="cpu"), plugins, settings, quiet)
    assert [(v.stroke.value, v.graph.dialect, v.threads) for v in listed.variants] == [
        ("prefill", "fused", None),
        ("decode", "fused", None),
    ]
    assert any("standard dialect" in each.what for each in listed.skipped)


def test_precisions_of_a_finished_bundle_need_its_source(bundle, plugins):
    settings = replace(BRIEF, precisions=("int4",))
    listed = candidates(model_of(bundle, backend="cpu"), plugins, settings, quiet)
    (skipped,) = [each for each in listed.skipped if each.what == "int4"]
    assert "source model" in skipped.reason


def test_a_request_that_does_not_fit_the_context_is_refused(bundle, plugins):
    settings = TuneSettings(Workload(prompt_tokens=10**6))
    with pytest.raises(ConfigError, match=r"a prompt of 1000000 tokens .* context of 'tiny'"):
        candidates(model_of(bundle), plugins, settings, quiet)


def test_a_stroke_that_can_run_nowhere_says_why(bundle):
    plugins = load_plugins(block=("cpu", "cuda", "directml", *PLUGIN_PROVIDERS))
    with pytest.raises(BackendError, match="prefill can run nowhere here"):
        candidates(model_of(bundle), plugins, BRIEF, quiet)


def test_the_best_the_current_and_each_backend_alone_are_measured_together(tuned):
    assert tuned.current is not None
    scores = [each.pair.score_s(SHORT) for each in tuned.standings]
    assert scores == sorted(scores)
    for standing in tuned.standings:
        pair = standing.pair
        assert pair.is_measured
        assert pair.ttft_s > pair.hand_over_s >= 0
        assert set(pair.step_s) == {1, 2}
        differs = pair.prefill.variant.graph.dialect != pair.decode.variant.graph.dialect
        assert pair.way == ("one copy in host memory" if differs else "shared")
        assert (pair.hand_over_s > 0) == differs
        assert standing.memory_bytes > 0


def test_the_table_and_the_json_say_the_same(tuned):
    lines = list(table(tuned))
    header = next(line for line in lines if "TTFT ms" in line)
    assert "tok/s at 1" in header
    assert "s an answer at 2" in header
    assert sum(line.startswith("*") for line in lines[2 : 2 + len(tuned.standings)]) == 1
    report = json.loads(json.dumps(as_json(tuned)))
    assert [pair["is_current"] for pair in report["pairs"]].count(True) == 1
    assert report["pairs"][0]["prefill"]["nodes"]["CPUExecutionProvider"] > 0
    assert report["pairs"][0]["prefill"]["options"]["intra_op_threads"] >= 1


def pair_with(pair, *, ttft_s, step_s, precision=None, is_current=False):
    """A copy of a measured pair that took something else."""

    def variant(opened):
        graph = opened.variant.graph
        if precision is not None:
            graph = graph.model_copy(
                update={
                    "quantisation": graph.quantisation.model_copy(update={"precision": precision})
                }
            )
        changed = replace(opened.variant, graph=graph, is_current=is_current)
        return replace(opened, variant=changed)

    return replace(
        pair,
        prefill=variant(pair.prefill),
        decode=variant(pair.decode),
        ttft_s=ttft_s,
        step_s={1: step_s, 2: step_s},
    )


def test_the_operators_lengths_and_streams_decide(tuned):
    pair = tuned.standings[0].pair
    reads_fast = pair_with(pair, ttft_s=1.0, step_s=0.1)
    writes_fast = pair_with(pair, ttft_s=2.0, step_s=0.05)
    assert reads_fast.answer_s(1, 8) == pytest.approx(1 + 7 * 0.1)
    assert reads_fast.answer_s(2, 8) == pytest.approx(1 + 7 * 0.1 / 2)  # two at a time
    both = [writes_fast, reads_fast]
    assert ranked(both, SHORT)[0] is reads_fast
    assert ranked(both, replace(SHORT, answer_tokens=100))[0] is writes_fast


def test_a_small_gain_and_another_precision_change_nothing(tuned):
    pair = tuned.standings[0].pair
    current = pair_with(pair, ttft_s=1.0, step_s=0.1, is_current=True)
    close = pair_with(pair, ttft_s=0.98, step_s=0.098)
    better = pair_with(pair, ttft_s=0.5, step_s=0.1)
    smaller = pair_with(pair, ttft_s=0.2, step_s=0.02, precision="int4")
    assert choose([close, current], SHORT, may_change_precision=False) is current
    assert choose([better, current], SHORT, may_change_precision=False) is better
    three = [smaller, better, current]
    assert choose(three, SHORT, may_change_precision=False) is better
    assert choose(three, SHORT, may_change_precision=True) is smaller
    assert finalists(three, 1) == [smaller, current]  # the best, and what is there


def test_only_what_differs_is_edited(bundle, plugins, tuned):
    pair = tuned.standings[0].pair
    model = model_of(bundle, backend="auto", options={"spinning": False})
    moved = replace(
        pair.prefill.variant,
        is_current=False,
        options={"spinning": False, "intra_op_threads": 3},
        graph=next(
            g for g in pair.prefill.variant.bundle.manifest.graphs if g.stroke.value == "prefill"
        ),
    )
    stays = replace(pair.decode.variant, is_current=True)
    changed = replace(
        pair,
        prefill=replace(pair.prefill, variant=moved),
        decode=replace(pair.decode, variant=stays),
    )
    made = edits(model, changed, plugins)
    assert made == (
        Edit(("prefill", "backend"), "cpu"),
        Edit(("prefill", "options", "spinning"), False),
        Edit(("prefill", "options", "intra_op_threads"), 3),
    )
    new = edited(model, made)
    assert (new.prefill.backend, new.decode.backend, new.backend) == ("cpu", None, "auto")
    assert new.prefill.options == {"spinning": False, "intra_op_threads": 3}


@pytest.fixture
def config(tmp_path, bundle):
    path = tmp_path / "config.yaml"
    path.write_text(
        f"# mine\nmodels:\n  - name: tiny  # small\n    source: {bundle}\n    backend: cpu\n"
        "    prefill: {dialect: standard}  # slow\n"
        f"plugins: {{block: [{', '.join(PLUGIN_PROVIDERS)}]}}\n"
    )
    return path


FLAGS = ("--prompt-tokens", "20", "--answer-tokens", "8", "--streams", "1,2", "--seconds", "0.05")


def test_the_command_shows_and_writes_nothing_unless_told(config, capsys):
    before = config.read_bytes()
    assert main(["tune", str(config), *FLAGS, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "prefill cpu fp32 standard" in shown
    assert "(what the configuration says)" in shown
    assert main(["tune", str(config), *FLAGS]) == 0
    assert "TTFT ms" in capsys.readouterr().out
    assert config.read_bytes() == before


def test_the_command_writes_the_best(config, capsys, monkeypatch):
    from twostroke.tune import run

    def best(pairs, workload, *, may_change_precision):  # whatever the machine does meanwhile
        return next(p for p in pairs if p.prefill.variant.graph.dialect == "fused")

    monkeypatch.setattr(run, "choose", best)
    assert main(["tune", str(config), *FLAGS, "--write", "--json"]) == 0
    told = capsys.readouterr()
    assert [pair["is_chosen"] for pair in json.loads(told.out)["pairs"]].count(True) == 1
    assert f"{config}: written" in told.err
    text = config.read_text()
    assert text.startswith("# mine\nmodels:\n  - name: tiny  # small\n")
    assert "# slow" in text
    assert yaml.safe_load(text)["models"][0]["prefill"]["dialect"] == "fused"
    assert load_config(config).models[0].prefill.dialect == "fused"


def test_the_command_refuses_what_makes_no_sense(config, capsys, tmp_path, monkeypatch):
    for flags, said in (
        (("--model", "other"), "no model 'other'; its models are: tiny"),
        (("--precisions", "int3"), "'int3' is none of fp32"),
        (("--prompt-tokens", "0"), "--prompt-tokens must be 1 or more"),
        (("--seconds", "0"), "--seconds must be more than 0"),
    ):
        assert main(["tune", str(config), *flags]) == 2
        assert said in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "..")
    assert main(["tune", "--write"]) == 2
    assert "--write needs a CONFIG" in capsys.readouterr().err


def test_a_backend_of_a_plugin_takes_part(tmp_path):
    from twostroke.testing import make_echo_bundle

    bundle = make_echo_bundle(tmp_path / "echo", dialects=("fused", "standard"))
    plugins = load_plugins(block=("cpu", "cuda", "directml", *PLUGIN_PROVIDERS), extra=[echo])
    model = model_of(bundle, backend="echo")
    listed = candidates(model, plugins, BRIEF, quiet)
    tuned = tune(listed, SchedulerConfig(), plugins, BRIEF, quiet)
    assert {each.pair.prefill.variant.backend for each in tuned.standings} == {"echo"}
    assert tuned.chosen is not None


def test_prefill_on_openvino_and_decode_on_the_cpu(bundle):
    pytest.importorskip("onnxruntime_ep_openvino", reason="OpenVINO's plugin is not installed")
    plugins = load_plugins(block=("cuda", "directml", "plugin_ep"))
    settings = replace(BRIEF, is_quick=True)
    listed = candidates(model_of(bundle, backend="cpu"), plugins, settings, quiet)
    tuned = tune(listed, SchedulerConfig(), plugins, settings, quiet)
    found = {
        (pair.prefill.variant.backend, pair.decode.variant.backend): pair
        for pair in (each.pair for each in tuned.standings)
    }
    assert {("cpu", "cpu"), ("openvino", "openvino")} <= found.keys()  # each alone is shown
    mixed = next(pair for places, pair in found.items() if len(set(places)) == 2)
    assert mixed.way == "one copy in host memory"
    assert mixed.hand_over_s > 0
