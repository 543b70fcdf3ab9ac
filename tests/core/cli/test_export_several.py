"""Several precisions at once, and what was measured on a text."""

from __future__ import annotations

import dataclasses

from twostroke.backends.discovery import Plugins
from twostroke.backends.hookspecs import ExporterSpec
from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import Evaluation
from twostroke.cli.export_summary import summary
from twostroke.cli.main import main
from twostroke.testing.bundles import make_echo_bundle


def test_several_precisions_make_a_bundle_each(tmp_path, monkeypatch, capsys):
    asked = []

    def export(options, progress):
        asked.append(options)
        return make_echo_bundle(options.out, name=options.precision)

    def export_several(several, progress):
        return [export(options, progress) for options in several]

    alone = ExporterSpec("fake", 1, "", ("fp32", "int8"), export)
    together = dataclasses.replace(alone, export=None, export_several=export_several)
    for number, fake in enumerate((alone, together)):
        plugins = Plugins({}, {"fake": fake}, ())
        monkeypatch.setattr("twostroke.backends.discovery.load_plugins", lambda p=plugins: p)
        out = tmp_path / f"out{number}"
        assert main(["export", "source", str(out), "--precision", "fp32,int8,fp32"]) == 0
        told = capsys.readouterr().out
        for precision in ("fp32", "int8"):
            assert f"{out}-{precision}: {precision}, echo" in told
        several = ["--precision", "int8,fp32", "--mixed-kl", "0.1"]  # which concerns neither
        assert main(["export", "source", str(out), *several]) == 2
        assert f"{out}-int8 exists already" in capsys.readouterr().err
    assert [options.precision for options in asked] == ["fp32", "int8"] * 2


def test_what_was_measured_on_a_text_is_in_the_summary(tmp_path):
    manifest = open_bundle(make_echo_bundle(tmp_path / "echo")).manifest
    found = Evaluation(
        text="book.txt",
        text_sha256="0" * 64,
        num_tokens=2047,
        window_tokens=512,
        backend="cpu",
        perplexity=21.5,
        source="m fp32",
        source_perplexity=21.0,
        mean_kl=0.0123,
        top1_agreement=0.95,
    )
    lines = list(summary(tmp_path, manifest.model_copy(update={"evaluations": (found,)})))
    assert (
        "  on 2047 tokens of book.txt: perplexity 21.50 (source 21.00), same token 95.0%, "
        "KL divergence 0.012"
    ) in lines
