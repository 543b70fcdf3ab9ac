from __future__ import annotations

import json

import pytest

from twostroke.cli import main
from twostroke.life.limits import DeviceLimits
from twostroke.testing.onnx_bundles import make_onnx_bundle

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 256,
}


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(
        "twostroke.life.limits.device_limits", lambda backend: DeviceLimits(1e9, 1e12, 4e12)
    )


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def report(capsys, *arguments) -> dict:
    assert main(["plan", *map(str, arguments), "--json", "--backend", "cpu"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_config_alone_is_enough(folder, capsys):
    told = report(capsys, folder, "--context", 100, "--rows", 3, "--precision", "fp16")
    assert (told["name"], told["precision"], told["kv_dtype"]) == ("tiny", "fp16", "float16")
    assert told["kv_bytes"] == 3 * 104 * 2 * 2 * 64 * 2
    assert report(capsys, folder / "config.json")["context_tokens"] == 256


def test_it_is_told_in_words(folder, capsys):
    assert main(["plan", str(folder), "--backend", "cpu", "--rows", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny: llama with ")
    for part in ("weights", "KV cache", "workspace", "fits", "most", "decode", "prefill"):
        assert f"{part}" in out
    assert "2 rows together" in out


def test_a_bundle_is_planned_from_its_graphs(tmp_path, capsys):
    bundle = make_onnx_bundle(tmp_path / "bundle")
    told = report(capsys, bundle)
    assert (told["model_type"], told["precision"], told["context_tokens"]) == ("tiny", "fp32", 256)
    assert told["disk_bytes"] >= (bundle / "weights.bin").stat().st_size
    assert main(["plan", str(bundle), "--precision", "int4", "--kv-dtype", "float16"]) == 2
    told = capsys.readouterr().err
    assert "--precision int4 was asked for, but the graphs of tiny are fp32" in told
    assert "--kv-dtype float16" in told


def test_what_does_not_fit_is_printed_and_refused_with_what_would(folder, capsys):
    arguments = ["plan", str(folder), "--backend", "cpu", "--memory"]
    assert main([*arguments, "64MiB"]) == 2
    told = capsys.readouterr()
    assert "does not fit" in told.out
    assert "a smaller precision takes less" in told.err
    assert main([*arguments, "115MiB", "--rows", "50"]) == 2
    assert " --rows " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "0"], "--rows must be 1 or more"),
        (["--context", "257"], "tiny takes from 2 to 256"),
        (["--memory", "lots"], "'lots' is not a size"),
        (["--backend", "cppu"], "Did you mean 'cpu'"),
    ],
)
def test_wrong_flags_are_told(folder, capsys, arguments, said):
    assert main(["plan", str(folder), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_of_a_hub_model_only_the_config_is_fetched(folder, monkeypatch, capsys):
    import huggingface_hub

    asked = []

    def download(*arguments):
        asked.append(arguments)
        return str(folder / "config.json")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert report(capsys, "org/name")["name"] == "org/name"
    assert asked == [("org/name", "config.json")]


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch, capsys):
    import huggingface_hub

    def download(*arguments):
        raise OSError("no route\nand more")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert main(["plan", "org/name"]) == 2
    told = capsys.readouterr().err
    assert "could not be downloaded (no route)" in told
    assert len(told.splitlines()) == 1


def test_what_is_no_model_is_told(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("[1]")
    for name, said in (("empty", "has no config.json"), ("bad", "holds no JSON object")):
        assert main(["plan", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err


@pytest.fixture
def deploy(tmp_path):
    """A YAML of two models, the second of which is loaded when it is asked for."""
    bundle = make_onnx_bundle(tmp_path / "bundle")
    path = tmp_path / "deploy.yaml"
    path.write_text(
        f"models:\n- {{name: a, source: {bundle}, backend: cpu}}\n"
        f"- {{name: b, source: {bundle}, backend: cpu, load: first_use}}\n"
        f"- {{name: c, source: {bundle}, backend: nowhere}}\n"
    )
    return path


def test_the_models_of_a_yaml_are_planned_beside_each_other(deploy, capsys):
    assert main(["plan", "--config", str(deploy), "--memory", "64MiB"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "host memory: 67.1 MB"
    assert [line.split(":")[0].strip() for line in lines[:2]] == ["a", "b"]
    assert lines[1].endswith("on first use")
    assert lines[-1] == "c: not known: its backend 'nowhere' is not here"
    assert main(["plan", "--config", str(deploy), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(m["name"], m["load"], m["fits"]) for m in told["models"]] == [
        ("a", "start", True),
        ("b", "first_use", True),
    ]


def test_a_yaml_that_finds_no_room_at_the_start_is_refused(deploy, capsys):
    assert main(["plan", "--config", str(deploy), "--memory", "10kB"]) == 2
    told = capsys.readouterr()
    assert "a: weights and workspace" in told.out
    assert "no room" in told.out
    assert "twostroke: error: a: no room beside the others at the start." in told.err


def test_flags_of_a_source_and_of_a_yaml_do_not_mix(deploy, folder, capsys):
    assert main(["plan", "--config", str(deploy), "--precision", "int4"]) == 2
    assert "--precision: for one SOURCE" in capsys.readouterr().err
    assert main(["plan", str(folder), "--config", str(deploy)]) == 2
    assert "leave SOURCE out" in capsys.readouterr().err
