from __future__ import annotations

import pytest

from twostroke.config import load_config
from twostroke.config.environment import expand
from twostroke.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "alpha"),
        ("x-${A}-${B}", "x-alpha-beta"),
        ("${NONE:-default}", "default"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${A:-default}", "alpha"),
        ("$${A}", "${A}"),
        ("$$", "$"),
        ("$A costs 5$", "$A costs 5$"),
        ("${NONE:-a:-b}", "a:-b"),
    ],
)
def test_expand(text, expected):
    assert expand(text, {"A": "alpha", "B": "beta", "EMPTY": ""}) == expected


@pytest.mark.parametrize("text", ["${}", "${1A}", "${A-b}", "${A B}", "${A", "x${"])
def test_malformed_variables_are_refused(text):
    with pytest.raises(ValueError, match="is not a variable; write"):
        expand(text, {"A": "alpha"})


def load(tmp_path, text, *overrides, **environ):
    path = tmp_path / "deploy.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides, environ=environ)


def test_values_take_the_type_of_their_setting(tmp_path):
    text = """\
server: {port: "${PORT}", keys: ["${KEY}"], host: "${HOST:-0.0.0.0}"}
models:
  - name: one
    source: ${SOURCE}
    context_tokens: ${CONTEXT:-}
    kv: {budget: "${BUDGET}"}
    options:
      threads: ${THREADS}
      mode: "${THREADS}"
      fast: ${FAST}
"""
    config = load(
        tmp_path, text, PORT="9000", KEY="0123", SOURCE="org/x", BUDGET="1GiB", THREADS="2",
        FAST="true",
    )  # fmt: skip
    (model,) = config.models
    assert (config.server.port, config.server.host) == (9000, "0.0.0.0")
    assert config.server.keys == ("0123",)  # not the number 83 or 123
    assert (model.source, model.context_tokens, model.kv.budget) == ("org/x", None, 1024**3)
    assert model.options == {"threads": 2, "mode": "2", "fast": True}


def test_a_missing_variable_is_named_once_with_its_line(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "server:\n  port: ${PORT}\n  prot: 1\n")
    first, second = caught.value.problems
    assert first.endswith(
        "deploy.yaml:2: server.port: the environment variable PORT is not set; "
        "set it, or write ${PORT:-default}"
    )
    assert "server.prot" in second


def test_a_wrong_value_tells_the_variable_it_came_from(tmp_path):
    with pytest.raises(ConfigError, match=r"got 'high' from \$\{PORT\}"):
        load(tmp_path, "server:\n  port: ${PORT}\n", PORT="high")


def test_an_empty_key_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"server\.keys\[0\]: expected text that is not empty"):
        load(tmp_path, 'server: {keys: ["${KEY}"]}\n', KEY="")


def test_a_flag_makes_the_variable_needless(tmp_path):
    assert load(tmp_path, "server:\n  port: ${PORT}\n", "server.port=1").server.port == 1


def test_the_process_environment_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOSTROKE_TEST_PORT", "4321")
    path = tmp_path / "deploy.yaml"
    path.write_text("server:\n  port: ${TWOSTROKE_TEST_PORT}\n", encoding="utf-8")
    assert load_config(path).server.port == 4321
