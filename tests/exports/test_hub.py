"""Hub ids, against a stand-in for the hub on this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest

from twostroke.bundle import open_bundle
from twostroke.errors import ExportError
from twostroke_export.pipeline import export_all
from twostroke_export.source import resolve

COMMIT = "c0ffee" + "0" * 34


class FakeHub(http.server.ThreadingHTTPServer):
    """Serves `folder` as the model acme/tiny; acme/gated wants an account, others are unknown."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.folder = folder
        self.fetched: list[str] = []


class FakeHubHandler(http.server.BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if "/acme/gated" in path:
            return self.fail(403, "GatedRepo")
        if "acme/tiny" not in path:
            return self.fail(404, "RepoNotFound")
        if "nope" in path:
            return self.fail(404, "RevisionNotFound")
        if path.startswith("/api/"):
            return self.send(json.dumps(self.listing(path)).encode(), with_body, "application/json")
        file = self.server.folder / path.rpartition("/")[2]
        if not file.is_file():
            return self.fail(404, "EntryNotFound")
        if with_body:
            self.server.fetched.append(path.partition("/resolve/")[2].partition("/")[2])
        return self.send(file.read_bytes(), with_body)

    def listing(self, path: str) -> object:
        """The model's description, or the list of its files where `path` asks for its tree."""
        names = [*sorted(p.name for p in self.server.folder.iterdir()), "onnx/model.safetensors"]
        if "/tree/" in path:
            return [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
        files = [{"rfilename": name} for name in names]
        return {"id": "acme/tiny", "sha": COMMIT, "siblings": files}

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, body: bytes, with_body: bool, kind: str = "application/octet-stream") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def hub(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    server = FakeHub(tiny_llama)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    constants = huggingface_hub.constants
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)  # no folder "acme" here
    yield server
    server.shutdown()
    server.server_close()


def test_a_hub_id_is_downloaded_and_exported(hub, tmp_path):
    out = tmp_path / "out"
    export_all("acme/tiny", {"int8": out})
    manifest = open_bundle(out).manifest
    assert manifest.name == "tiny"
    assert manifest.source == {"kind": "hub", "id": "acme/tiny", "revision": COMMIT}


def test_only_what_is_read_is_downloaded_and_only_once(hub):
    source = resolve("acme/tiny")
    assert "model.safetensors" in hub.fetched
    assert "onnx/model.safetensors" not in hub.fetched
    assert source.folder.name == COMMIT
    hub.fetched.clear()
    resolve("acme/tiny")
    assert not hub.fetched


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("acme/unknown", "There is no folder or file at acme/unknown, and the hub has no model"),
        ("acme/gated", "acme/gated is a gated model: accept its terms"),
        ("acme/tiny@nope", "acme/tiny has no revision 'nope'"),
        ("acme/tiny/model.gguf", "acme/tiny has no file 'model.gguf'"),
    ],
)
def test_what_the_hub_refuses(hub, source, expected):
    with pytest.raises(ExportError) as caught:
        resolve(source)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_network(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ExportError, match=r"^There is no folder or file at acme/tiny,") as caught:
        resolve("acme/tiny")
    assert "could not be downloaded" in str(caught.value)
    assert caught.value.__suppress_context__  # no stack of an HTTP client above the sentence
