"""What Ollama's clients ask about models, and what they are refused."""

from __future__ import annotations

import ollama
import pytest

from twostroke.server.surfaces.ollama.names import served_name, tagged_name

from .asking import TEMPLATE, chat, user


def test_models_are_listed_and_shown(llama, scripted):
    (listed,) = llama.list().models
    bundle = scripted.model.bundle
    assert listed.model == "echo:latest"
    assert listed.digest == bundle.manifest.manifest_sha256
    assert listed.size == bundle.num_bytes
    assert listed.details.format == "onnx"
    assert (listed.details.family, listed.details.quantization_level) == ("echo", "FP32")
    shown = llama.show("echo")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.template == TEMPLATE
    assert shown.modelinfo["general.architecture"] == "echo"
    assert shown.modelinfo["echo.context_length"] == 2048
    assert shown.parameters.split() == ["temperature", "0.0"]
    (running,) = llama.ps().models
    assert (running.model, running.size_vram, running.context_length) == ("echo:latest", 0, 2048)
    assert running.size > 0


def test_clients_probe_the_version(scripted):
    assert scripted.get("/api/version").json()["version"].count(".") == 2
    for path in ("/api/version", "/api/tags"):
        assert scripted.ask("HEAD", path).status == 200


def test_a_model_goes_by_its_name_with_and_without_latest(llama, scripted):
    for name in ("echo", "echo:latest"):
        assert llama.chat(name, [user("x")]).model == name
        assert llama.show(name).details.family == "echo"
    assert scripted.post("/api/show", {"name": "echo"}).status == 200
    with pytest.raises(ollama.ResponseError, match="'echo:7b' is not served") as raised:
        llama.chat("echo:7b", [user("x")])
    assert raised.value.status_code == 404


def test_names():
    served = ("a", "org/b", "c:latest")
    for asked, found in (
        ("a", "a"),
        ("a:latest", "a"),
        ("org/b:latest", "org/b"),
        ("c:latest", "c:latest"),
        ("c", "c"),
        ("d:latest", "d:latest"),
        ("", None),
        (None, None),
    ):
        assert served_name(asked, served) == found
    assert tagged_name("a") == "a:latest"
    assert tagged_name("host:80/a") == "host:80/a:latest"
    assert tagged_name("a:7b") == "a:7b"


def test_what_would_change_the_models_is_refused_in_a_sentence(llama):
    for refused in (
        lambda: llama.create("new", from_="echo"),
        lambda: llama.copy("echo", "other"),
        lambda: llama.push("echo"),
        lambda: llama.delete("echo"),
    ):
        with pytest.raises(ollama.ResponseError, match="change it there") as raised:
            refused()
        assert raised.value.status_code == 501
    with pytest.raises(ollama.ResponseError, match="no embeddings"):
        llama.embed("echo", "x")


def test_pulling_what_is_served_is_done_at_once(llama):
    assert llama.pull("echo").status == "success"
    assert [each.status for each in llama.pull("echo", stream=True)] == ["success"]
    with pytest.raises(ollama.ResponseError, match="not served"):
        llama.pull("llama3")


BAD = {
    "messages[0].images": ("/api/chat", {"messages": [{**user("x"), "images": ["aa"]}]}),
    "messages[0].role": ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}),
    "messages[0].content": ("/api/chat", {"messages": [user(["x"])]}),
    "messages[0].tool_calls[0]": (
        "/api/chat",
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]},
    ),
    "format": ("/api/chat", {"messages": [user("x")], "format": 5}),
    "think": ("/api/chat", {"messages": [user("x")], "think": "hard"}),
    "keep_alive": ("/api/chat", {"messages": [user("x")], "keep_alive": "soon"}),
    "tools": ("/api/chat", {"messages": [user("x")], "tools": "add"}),
    "options.top_k": ("/api/chat", {"messages": [user("x")], "options": {"top_k": "4"}}),
    "options.mirostat": ("/api/generate", {"prompt": "x", "options": {"mirostat": 2}}),
    "top_logprobs": ("/api/generate", {"prompt": "x", "top_logprobs": 2}),
    "suffix": ("/api/generate", {"prompt": "x", "suffix": "y"}),
    "template": ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}),
    "images": ("/api/generate", {"prompt": "x", "images": ["aa"]}),
    "raw": ("/api/generate", {"prompt": "x", "raw": True, "system": "s"}),
    "prompt[0]": ("/api/generate", {"prompt": "x", "context": [10**6]}),
    "2048": ("/api/generate", {"prompt": "x" * 3000}),
}


@pytest.mark.parametrize("named", BAD)
def test_bad_bodies_are_refused_by_the_name_of_the_field(scripted, stream, named):
    path, body = BAD[named]
    reply = scripted.post(path, {**body, "stream": stream})
    assert reply.status == 400
    assert set(reply.json()) == {"error"}
    assert named in reply.json()["error"]


def test_a_fault_in_a_stream_is_a_line(serve_echo, script_bundle):
    server = serve_echo(bundle=script_bundle, fail_decode_runs=[2])
    with (
        ollama.Client(host=server.url) as client,
        pytest.raises(ollama.ResponseError, match="decode"),
    ):
        chat(client, "abcdef", stream=True)
