"""The command, on an exporter that a stranger's package brings; the real one has its own tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from twostroke.backends.discovery import Plugins
from twostroke.backends.hookspecs import ExporterSpec
from twostroke.bundle.manifest import (
    Architecture,
    FileFact,
    KVLayer,
    Manifest,
    Quantisation,
    Verification,
    both_strokes,
)
from twostroke.cli.export import choose_exporter, summary
from twostroke.cli.main import main
from twostroke.errors import ExportError, InstallError

EXPORTER = """
import pathlib, time
from twostroke.backends import hookimpl
from twostroke.backends.hookspecs import ExporterSpec, Progress
from twostroke.bundle import sealing
from twostroke.errors import ExportError
from twostroke.testing.bundles import make_echo_bundle

def export(options, on_progress):
    for number, stage in enumerate(["loading", "tracing", "writing"]):
        on_progress(Progress(stage, number / 3))
    if options.source == "broken":
        raise ExportError("broken: config.json is missing")
    if options.source == "endless":
        with sealing(options.out) as folder:
            (folder / "prefill.onnx").touch()
            time.sleep(600)
    name, context_tokens = options.name or "unnamed", options.context_tokens or 64
    return make_echo_bundle(options.out, name=name, context_tokens=context_tokens)

@hookimpl
def twostroke_exporters():
    return [ExporterSpec("fake", 1, "for tests", ("fp32", "int8"), export)]
"""


@pytest.fixture
def stranger(echo_environment, tmp_path_factory):
    """Variables under which a second exporter is installed."""
    site = tmp_path_factory.mktemp("exporter")
    (site / "fake_export.py").write_text(EXPORTER, encoding="utf-8")
    info = site / "fake_export-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-export\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[twostroke]\nfake = fake_export\n")
    return {"PYTHONPATH": f"{site}{os.pathsep}{echo_environment['PYTHONPATH']}"}


def test_stages_go_to_stderr_and_the_summary_to_stdout(twostroke, stranger, tmp_path):
    done = twostroke(
        "export", "source", "out", "--exporter", "fake", "--context", 32, "--name", "mine",
        **stranger,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, files, last = done.stdout.splitlines()
    assert first.startswith("out: mine, echo with 0 parameters, fp32, context 32 tokens, ")
    assert "tokenizer.json" in files
    assert last == '  try: twostroke generate --model out "Once upon a time"'
    assert [line.split()[-1] for line in done.stderr.splitlines()] == [
        "loading",
        "tracing",
        "writing",
    ]
    assert (tmp_path / "out" / "bundle.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("broken", "out", "--exporter", "fake"), "broken: config.json is missing"),
        (("x", "taken", "--exporter", "fake"), "taken exists already"),
        (("x", "out", "--exporter", "fake", "--precision", "int4"), "makes fp32, int8, not int4"),
        (("x", "out"), "several exporters are installed; choose with --exporter: fake, "),
        (("x", "out", "--exporter", "none"), "there is no exporter 'none'; installed are: fake, "),
        (("x", "out", "--precision", "int3"), "'int3' is none of fp32, fp16, bf16"),
        (("x", "out", "--precision", "int8,,int4"), "'' is none of"),
        (("x", "out", "--exporter", "fake", "--evaluate", "no.txt"), "no.txt cannot be read"),
        (("x", "out", "--exporter", "fake", "--decode-precision", "int4"), "fp32, int8, not int4"),
        (("x", "out", "--block-size", "48"), "invalid choice: 48 (choose from 16, 32, 64"),
        (("x", "out", "--accuracy-level", "2"), "invalid choice: 2"),
        (("x", "out", "--symmetric", "--asymmetric"), "not allowed with argument"),
        (("x", "out", "--context", "0"), "must be 1 or more, not 0"),
        (("x", "out", "--context", "much"), "invalid"),
    ],
)
def test_mistakes_leave_nothing_behind(twostroke, stranger, tmp_path, arguments, told):
    (tmp_path / "taken").mkdir()
    done = twostroke("export", *arguments, **stranger)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_leaves_nothing_behind(echo_environment, stranger, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "twostroke", "export", "endless", "out", "--exporter", "fake"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**echo_environment, **stranger},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        while "writing" not in process.stderr.readline():
            pass
        while not any(tmp_path.iterdir()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told.strip() == "twostroke: interrupted"
    assert os.listdir(tmp_path) == []


def test_what_is_asked_reaches_the_exporter(tmp_path, monkeypatch):
    asked = []
    fake = ExporterSpec(
        "fake", 1, "", ("fp32", "int8", "mixed", "int4"), lambda o, p: asked.append(o)
    )
    monkeypatch.setattr(
        "twostroke.backends.discovery.load_plugins", lambda: Plugins({}, {"fake": fake}, ())
    )
    out = str(tmp_path / "out")
    for flags in (
        [],
        ["--prefill-precision", "int8", "--decode-precision", "int4", "--block-size", "64"],
        ["--symmetric", "--accuracy-level", "0", "--activations", "fp16", "--kv-dtype", "int8"],
        ["--asymmetric"],
        ["--precision", "mixed", "--mixed-kl", "0.02", "--mixed-mb", "1.5", "--evaluate", __file__],
        ["--precision", "int8,mixed", "--mixed-kl", "0.02"],
    ):
        with contextlib.suppress(Exception):  # the fake makes nothing that could be shown
            main(["export", "source", out, *flags])
    plain, pair, all_else, zeros, mixed, first, *others = asked
    assert (mixed.mixed_kl, mixed.mixed_budget_bytes) == (0.02, 1_500_000)
    assert mixed.evaluate == Path(__file__)
    assert (first.precision, first.mixed_kl) == ("int8", None)
    assert [(other.precision, other.mixed_kl) for other in others] == [("mixed", 0.02)]
    assert (plain.prefill_precision, plain.block_size, plain.is_symmetric) == (None, None, None)
    assert (plain.accuracy_level, plain.activations, plain.kv_dtype) == (None, None, None)
    assert (pair.precision, pair.prefill_precision, pair.decode_precision) == (
        "int8",
        "int8",
        "int4",
    )
    assert pair.block_size == 64
    assert (all_else.is_symmetric, all_else.accuracy_level) == (True, 0)
    assert (all_else.activations, all_else.kv_dtype) == ("fp16", "int8")
    assert zeros.is_symmetric is False


def spec(name: str) -> ExporterSpec:
    return ExporterSpec(name, 1, "for tests", ("fp32",), lambda options, progress: options.out)


def test_which_exporter():
    one, two = spec("one"), spec("two")
    assert choose_exporter({"one": one}, None) is one
    assert choose_exporter({"one": one, "two": two}, "two") is two
    with pytest.raises(InstallError, match=r'pip install "twostroke\[export\]"'):
        choose_exporter({}, None)
    with pytest.raises(ExportError, match="choose with --exporter: one, two"):
        choose_exporter({"two": two, "one": one}, None)


def test_the_summary_tells_sizes_and_parity(tmp_path):
    manifest = Manifest(
        name="mine",
        architecture=Architecture(
            model_type="llama",
            num_layers=2,
            hidden_size=8,
            num_heads=2,
            vocab_size=100,
            num_parameters=134_515_008,
        ),
        context_tokens=8192,
        kv_layers=(KVLayer(num_kv_heads=1, head_dim=4),),
        graphs=both_strokes(Quantisation(precision="int8")),
        verifications=(
            Verification(
                num_steps=17,
                prefill_max_abs_diff=0.54357,
                decode_max_abs_diff=0.95772,
                num_argmax_equal=16,
                mean_kl=0.0037511,
                top1_agreement=0.958984,
                num_text_tokens=512,
            ),
        ),
        files={
            "weights.bin": FileFact(num_bytes=153_896_192, sha256="0" * 64),
            "tokenizer.json": FileFact(num_bytes=3_522_871, sha256="0" * 64),
        },
    )
    assert list(summary(tmp_path / "out", manifest))[:-1] == [
        f"{tmp_path / 'out'}: mine, llama with 135 M parameters, int8, context 8192 tokens, 157 MB",
        "  files: weights.bin 154 MB, tokenizer.json 3.52 MB",
        "  against the source: same token in 16 of 17 steps; largest difference of a logit 0.54 "
        "(prefill), 0.96 (decode)",
        "  on 512 tokens of text: same token at 95.9% of the positions, KL divergence 0.0038",
    ]


def test_the_summary_tells_what_two_precisions_take(tmp_path):
    graphs = tuple(
        graph.model_copy(
            update={
                "quantisation": Quantisation(precision=precision),
                "weight_bytes": num_bytes,
                "shared_weight_bytes": 30_000_000,
            }
        )
        for graph, precision, num_bytes in zip(
            both_strokes(Quantisation(precision="int8")),
            ("int8", "int4"),
            (150_000_000, 100_000_000),
            strict=True,
        )
    )
    lines = list(summary(tmp_path, echo_manifest(graphs)))
    assert lines[1] == (
        "  weights: prefill int8 150 MB, decode int4 100 MB, 30 MB of them shared: 220 MB in memory"
    )
    alike = tuple(
        graph.model_copy(update={"weight_bytes": 1, "shared_weight_bytes": 1})
        for graph in both_strokes(Quantisation(precision="int8"))
    )
    assert not [line for line in summary(tmp_path, echo_manifest(alike)) if "weights:" in line]


def echo_manifest(graphs) -> Manifest:
    shape = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "vocab_size": 9}
    return Manifest(
        name="mine",
        architecture=Architecture(model_type="llama", num_parameters=1, **shape),
        context_tokens=64,
        kv_layers=(KVLayer(num_kv_heads=1, head_dim=4),),
        graphs=graphs,
    )
