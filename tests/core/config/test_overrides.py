from __future__ import annotations

import pytest

from twostroke.config import DEMO_SOURCE, load_config
from twostroke.errors import ConfigError

TWO = """\
server: {port: 9000, keys: [a, b]}
models:
  - name: org/one-1.5
    source: org/one
  - name: org/one-1.5.small
    source: org/two
"""


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text(TWO, encoding="utf-8")
    return path


def problem(path, *overrides) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    (text,) = caught.value.problems
    return text


def test_flags_replace_values_and_the_last_one_wins(two):
    config = load_config(two, ["server.port=1", "server.host=0.0.0.0", "server.port=2"])
    assert (config.server.port, config.server.host) == (2, "0.0.0.0")
    assert config.server.keys == ("a", "b")


def test_values_are_yaml(two):
    config = load_config(
        two,
        [
            "server.keys=[x]",
            "models.0.kv={budget: 1GiB}",
            "models.0.context_tokens=null",
            "models.1.fallback=[cpu]",
            "models.1.options.threads=3",
        ],
    )
    first, second = config.models
    assert config.server.keys == ("x",)
    assert (first.kv.budget, first.context_tokens) == (1024**3, None)
    assert (second.fallback, second.options) == (("cpu",), {"threads": 3})


def test_models_by_index_and_by_name(two):
    config = load_config(
        two, ["models.org/one-1.5.backend=cpu", "models.org/one-1.5.small.kv.dtype=float16"]
    )
    assert [model.backend for model in config.models] == ["cpu", "auto"]
    assert [model.kv.dtype for model in config.models] == ["auto", "float16"]


def test_list_items_are_replaced_and_appended(two):
    overrides = [
        "server.keys.1=c",
        "server.keys.2=d",
        "models.2.name=three",
        "models.2.source=org/x",
    ]
    config = load_config(two, overrides)
    assert config.server.keys == ("a", "c", "d")
    assert config.models[2].name == "three"


def test_the_default_model_can_be_changed_without_being_repeated():
    (model,) = load_config(None, ["models.smollm2-135m-instruct.backend=cpu"]).models
    assert (model.backend, model.source) == ("cpu", DEMO_SOURCE)


def test_a_flag_beneath_an_empty_section(tmp_path):
    path = tmp_path / "deploy.yaml"
    path.write_text("server:\n", encoding="utf-8")
    assert load_config(path, ["server.port=7"]).server.port == 7


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("server.port", "expected a key path and a value, for example server.port=9000"),
        ("=1", "expected a key path and a value, for example server.port=9000"),
        ("server.prt=1", "server.prt: unknown key; did you mean 'port'?"),
        ("sever.port=1", "sever: unknown key; did you mean 'server'?"),
        ("server.port=x", "server.port: expected a whole number from 0 to 65535, got 'x'"),
        ("server.port=", "server.port: expected a whole number from 0 to 65535, got nothing"),
        ("server.max_body=[", "is not YAML: expected the node content, but found '<stream end>'"
         " (while parsing a flow node)"),
        ("server.port.x=1", "server.port is a single value; there is no 'x' below it"),
        ("server.0=1", "server has keys, no numbered items; there is no 0"),
        ("models.7.name=x", "models has 2 items; the next index is 2"),
        ("models.nine.backend=cpu", "no model is named 'nine'; the models are: org/one-1.5, "
         "org/one-1.5.small"),
        ("models.2.backend=cpu", None),
        ("models.0.name=org/one-1.5.small", None),
    ],
)  # fmt: skip
def test_problems_name_the_flag(two, flag, expected):
    if expected is None:
        with pytest.raises(ConfigError) as caught:
            load_config(two, [flag])
        assert all(f"--set {flag}: " in p or "deploy.yaml:5" in p for p in caught.value.problems)
    else:
        assert problem(two, flag) == f"--set {flag}: {expected}"


def test_problems_of_flags_come_after_those_of_the_file(two):
    two.write_text(TWO + "colour: red\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(two, ["server.prt=1", "nothing"])
    places = [text.split(":")[0] for text in caught.value.problems]
    assert places == [str(two), "--set server.prt=1", "--set nothing"]
