"""What cannot be served is refused at the start, by name; what is unusual is served as it is."""

import json
import shutil
from pathlib import Path

import pytest

from twostroke.bundle.open import read_manifest
from twostroke.bundle.write import seal
from twostroke.model import Model
from twostroke.testing.onnx_bundles import make_onnx_bundle

FOREIGN = Path(__file__).parents[2] / "data" / "foreign"
CHAT = "/v1/chat/completions"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def refusal(done):
    """What a command that fails says: one sentence."""
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.cases(26)
def test_a_backend_that_cannot_run_is_no_silent_cpu(twostroke, demo_bundle_int8):
    done = twostroke(
        *("generate", "--model", demo_bundle_int8, "hi", "--max-tokens", 2),
        *("--set", "models.0.backend=cuda"),
        **NO_GPU,
    )
    assert "cuda" in refusal(done)
    assert done.stdout == ""


@pytest.mark.cases(26)
def test_a_fallback_is_one_that_was_named(twostroke, demo_bundle_int8):
    done = twostroke(
        *("generate", "--model", demo_bundle_int8, "hi", "--max-tokens", 2),
        *("--set", "models.0.backend=cuda", "--set", "models.0.fallback=[cpu]"),
        **NO_GPU,
    )
    assert done.returncode == 0, done.stderr
    assert "cuda" in done.stderr


@pytest.mark.cases(26)
def test_health_counts_the_nodes_of_each_provider(live):
    (model,) = live.health()["models"]
    assert model["fallback"] is None
    for stroke in ("prefill", "decode"):
        (provider,) = model["placement"][stroke]["nodes"]
        assert provider == "CPUExecutionProvider"
        assert model["placement"][stroke]["nodes"][provider] > 100


@pytest.mark.cases(27)
@pytest.mark.parametrize("fault", ["missing", "truncated", "elsewhere"])
def test_weights_at_fault_are_named(twostroke, tmp_path, fault):
    bundle = make_onnx_bundle(tmp_path / "tiny")
    weights = bundle / "weights.bin"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    else:
        weights.rename(tmp_path / "weights.bin")
    if fault == "elsewhere":
        weights.symlink_to(tmp_path / "weights.bin")
    said = refusal(twostroke("generate", "--model", bundle, "hi"))
    assert "weights.bin" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.cases(28)
@pytest.mark.parametrize("name", ["optimum-llama-past", "optimum-gpt2-pair", "genai-llama-fp32"])
def test_a_graph_is_fed_what_it_declares(name):
    wanted = json.loads((FOREIGN / name / "reference.json").read_text())
    with Model.open(FOREIGN / name, backend="cpu", kv={"budget": "8MiB"}) as model:
        answer = model.complete(
            wanted["prompt_ids"], max_tokens=8, temperature=0.0, ignore_eos=True
        )
    assert list(answer.token_ids) == wanted["greedy_ids"]


@pytest.mark.cases(28)
def test_an_input_that_nobody_knows_is_named(twostroke, tmp_path):
    onnx = pytest.importorskip("onnx")
    bundle = make_onnx_bundle(tmp_path / "tiny")
    path = bundle / "decode.onnx"
    graph = onnx.load(str(path), load_external_data=False)
    unknown = onnx.helper.make_tensor_value_info("pixel_values", onnx.TensorProto.FLOAT, [1, 3])
    graph.graph.input.append(unknown)
    onnx.save(graph, str(path))
    seal(bundle, read_manifest(bundle))
    said = refusal(twostroke("generate", "--model", bundle, "hi"))
    assert "pixel_values" in said


@pytest.mark.cases(29)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_each_id_that_ends_an_answer_ends_it(tmp_path, file):
    """The model's own config, its generation config and its tokenizer each name one."""
    folder = tmp_path / "model"
    shutil.copytree(FOREIGN / "optimum-gpt2-pair", folder)
    greedy = json.loads((folder / "reference.json").read_text())["greedy_ids"]
    ending = next(n for n, token_id in enumerate(greedy) if n and token_id not in greedy[:n])
    given = json.loads((folder / file).read_text())
    if file == "tokenizer_config.json":
        vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        given["eos_token"] = next(text for text, i in vocab.items() if i == greedy[ending])
    else:
        own = given.get("eos_token_id")
        given["eos_token_id"] = [*(own if isinstance(own, list) else [own]), greedy[ending]]
    (folder / file).write_text(json.dumps(given))
    ids = json.loads((folder / "reference.json").read_text())["prompt_ids"]
    with Model.open(folder, backend="cpu", kv={"budget": "8MiB"}) as model:
        answer = model.complete(ids, max_tokens=8, temperature=0.0)
    assert (answer.finish_reason, list(answer.token_ids)) == ("stop", greedy[:ending])


@pytest.mark.cases(30)
def test_a_model_without_a_template_completes_and_refuses_to_chat(serve, tmp_path):
    untold = serve(make_onnx_bundle(tmp_path / "tiny"))
    lines = untold.log.read_text().splitlines()
    assert any("WARNING" in line and "template" in line for line in lines), lines
    for stream in (True, False):
        asked = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
        assert "template" in untold.post(CHAT, asked).error()["message"]
    assert untold.say("/v1/completions", "hi", max_tokens=4).num_tokens is not None
    assert untold.say("/generate", "hi", max_tokens=4).reason in ("stop", "length")
