"""`twostroke plugins` and `twostroke doctor`; what they say in detail is tested in its own room."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def broken(echo_environment, tmp_path_factory):
    """Variables under which a plugin that cannot be imported is installed."""
    site = tmp_path_factory.mktemp("broken")
    (site / "broken_plugin.py").write_text("raise RuntimeError('made for another machine')\n")
    info = site / "broken_plugin-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[twostroke]\nbroken = broken_plugin\n")
    return {"PYTHONPATH": f"{site}{os.pathsep}{echo_environment['PYTHONPATH']}"}


def line_of(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if f" {name} (" in line]
    return line


def test_plugins_lists_loaded_blocked_and_failed_ones(twostroke, broken):
    done = twostroke("plugins", "--set", "plugins.block=[echo]", **broken)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "loaded" in line_of(done.stdout, "cpu")
    assert "blocked" in line_of(done.stdout, "echo")
    failed = line_of(done.stdout, "broken")
    assert "failed" in failed
    assert "broken-plugin 0.3" in failed
    assert "made for another machine" in done.stdout


def test_the_yaml_of_the_folder_counts(twostroke, tmp_path):
    (tmp_path / "config.yaml").write_text("plugins: {block: [echo]}\n", encoding="utf-8")
    assert "blocked" in line_of(twostroke("plugins").stdout, "echo")


def test_doctor_says_what_works_here(twostroke):
    done = twostroke("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "echo" in done.stdout
    assert "onnxruntime" in done.stdout
    assert done.stderr == ""


def test_a_broken_plugin_does_not_stop_a_start_that_does_not_need_it(
    twostroke, broken, echo_bundle
):
    arguments = ("generate", "--model", echo_bundle, "x", "--set")
    done = twostroke(*arguments, "models.0.backend=echo", **broken)
    assert (done.returncode, done.stdout) == (0, "→x\n")
    assert done.stderr.startswith("twostroke: warning: plugin broken (broken-plugin 0.3) failed")
    done = twostroke(*arguments, "models.0.backend=broken", **broken)
    assert done.returncode == 2
    assert "made for another machine" in done.stderr
