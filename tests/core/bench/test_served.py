"""The server that a measurement starts by itself."""

import json
import urllib.request

from twostroke.bench.served import served


def test_it_asks_for_no_key_whatever_the_yaml_wants_of_others(
    echo_bundle, echo_environment, tmp_path, monkeypatch
):
    for name, value in echo_environment.items():
        monkeypatch.setenv(name, value)
    config = {
        "server": {
            "host": "0.0.0.0",
            "keys": ["key"],
            "key_file": "missing.json",
            "tls": {"certificate": "missing.pem", "key": "missing.pem"},
        },
        "models": [{"name": "echo", "source": str(echo_bundle), "backend": "echo"}],
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    with (
        served(["--config", str(path)]) as url,
        urllib.request.urlopen(f"{url}/v1/models", timeout=60) as reply,
    ):
        assert url.startswith("http://127.0.0.1:")
        assert json.load(reply)["data"][0]["id"] == "echo"
