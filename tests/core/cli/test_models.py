"""`twostroke models` against a server in this process."""

from __future__ import annotations

import pytest

from twostroke.cli import main
from twostroke.testing.serving import EchoServer


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with EchoServer(tmp_path_factory.mktemp("served")) as server:
        yield server.url


def test_what_is_served_is_shown(url, capsys):
    assert main(["models", "--url", f"{url}/v1"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("ready      echo  ")
    assert line.endswith(" tokens\n")


@pytest.mark.parametrize("action", ["load", "unload"])
def test_the_servers_own_words_are_told(url, capsys, action):
    assert main(["models", action, "echo", "--url", url]) == 2
    assert "was given its models" in capsys.readouterr().err
    assert main(["models", action, "org/none", "--url", url]) == 2
    assert "The model 'org/none' is not served here" in capsys.readouterr().err


def test_where_nobody_answers_that_is_told(capsys):
    assert main(["models", "--url", "http://127.0.0.1:9"]) == 2
    assert "Is `twostroke serve` running there?" in capsys.readouterr().err
    assert main(["models", "--url", "somewhere"]) == 2
    assert "is no URL" in capsys.readouterr().err


def test_a_key_is_sent(monkeypatch, capsys):
    seen = []

    def urlopen(request, timeout):
        seen.append(request.get_header("Authorization"))
        raise OSError("enough")

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setenv("TWOSTROKE_KEY", "of-the-environment")
    main(["models"])
    main(["models", "--key", "given"])
    assert seen == ["Bearer of-the-environment", "Bearer given"]
