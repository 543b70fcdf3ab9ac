from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.config import Config, load_config
from twostroke.errors import ConfigError

GOOD = """\
server:
  port: 9000
models:
  - name: one
    source: org/one
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "deploy.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems(path: Path | None, *overrides: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, environ=environ)
    folder = "" if path is None else f"{path.parent}/"
    return [problem.replace(folder, "") for problem in caught.value.problems]


def test_no_file_is_the_defaults():
    assert load_config(None) == Config()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "server:\nscheduler:\n"])
def test_empty_files_and_sections_are_the_defaults(write, text):
    assert load_config(write(text)) == Config()


def test_what_the_file_says_replaces_the_defaults(write):
    config = load_config(write(GOOD))
    assert config.server.port == 9000
    assert [model.name for model in config.models] == ["one"]
    assert config.scheduler == Config().scheduler


def test_every_problem_is_told_at_once_in_the_order_of_the_file(write):
    path = write(
        """\
server:
  prot: 9000
  host: 1.5
models:
  - name: no
    source: org/one
    precison: int8
    context_tokens: 0
    kv: {budget: 3 XB, dtype: float23}
    prefill: cpu
  - source: org/two
scheduler: {max_rows: true}
kv: {}
sheduler: {}
colour: red
"""
    )
    assert problems(path) == [
        "deploy.yaml:2: server.prot: unknown key; did you mean 'port'?",
        'deploy.yaml:3: server.host: expected text that is not empty, got 1.5; write "1.5"',
        'deploy.yaml:5: models[0].name: expected text that is not empty, got no; write "no"',
        "deploy.yaml:7: models[0].precison: unknown key; did you mean 'precision'?",
        "deploy.yaml:8: models[0].context_tokens: expected a whole number of at least 1 or null, "
        "got 0",
        "deploy.yaml:9: models[0].kv.budget: expected a size such as 512MiB or auto, got '3 XB'",
        "deploy.yaml:9: models[0].kv.dtype: expected one of auto, float32, float16, bfloat16 or "
        "int8, got 'float23'; did you mean 'float32'?",
        "deploy.yaml:10: models[0].prefill: expected a mapping of keys to values, got 'cpu'",
        "deploy.yaml:11: models[1].name: is missing; expected text that is not empty",
        "deploy.yaml:12: scheduler.max_rows: expected a whole number from 1 to 1024, got true",
        "deploy.yaml:13: kv: unknown key here; did you mean 'models[0].kv'?",
        "deploy.yaml:14: sheduler: unknown key; did you mean 'scheduler'?",
        "deploy.yaml:15: colour: unknown key; the keys here are server, models, scheduler, plugins",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server:\n\tport: 1\n", ":2: is indented with a tab; YAML allows spaces only"),
        ("- a\n- b\n", ":1: expected sections such as `server:` and `models:`"),
        ("8080\n", ":1: expected sections"),
        ("server: {port: 1\n", ":2: is not YAML: expected ',' or '}'"),
        ("server: [${A}]\n", 'inside [ ] and { } a variable needs quotes: "${NAME}"'),
        ("a: 1\n---\nb: 2\n", ":2: is not YAML: but found another document"),
        ("a: \x01\n", ": is not YAML: unacceptable character #x0001"),
        ("a: " + "[" * 5000 + "]" * 5000, ": is nested too deeply"),
        ("server: &a {host: *a}\n", ":1: aliases repeat without end"),
        ("server: !!python/name:os.system\n", "could not determine a constructor"),
    ],
)
def test_what_is_not_a_yaml_mapping_is_told_in_one_line(write, text, expected):
    (problem,) = problems(write(text))
    assert problem.startswith("deploy.yaml:")
    assert expected in problem
    assert "\n" not in problem


def test_aliases_that_multiply_are_refused_before_memory_is_gone(write):
    levels = "".join(f"l{i + 1}: &l{i + 1} [{', '.join([f'*l{i}'] * 10)}]\n" for i in range(9))
    assert "aliases repeat without end" in problems(write("l0: &l0 x\n" + levels))[0]


def test_unreadable_files(tmp_path):
    assert problems(tmp_path / "none.yaml") == ["none.yaml: no such file"]
    (tmp_path / "folder").mkdir()
    assert problems(tmp_path / "folder") == ["folder: is a folder, not a YAML file"]
    (tmp_path / "latin.yaml").write_bytes(b"server: \xe9\n")
    assert problems(tmp_path / "latin.yaml") == ["latin.yaml: is not UTF-8 text (byte 8)"]


def test_a_byte_order_mark_is_no_matter(tmp_path):
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert load_config(path).server.port == 9000


def test_duplicate_keys(write):
    path = write("server:\n  port: 1\n  port: 2\nmodels: []\nserver: {}\n")
    assert problems(path) == [
        "deploy.yaml:3: server.port: the key stands here twice, first in line 2",
        "deploy.yaml:4: models: expected a list of at least 1, each item a mapping of keys to "
        "values, got an empty list",
        "deploy.yaml:5: server: the key stands here twice, first in line 1",
    ]


def test_keys_that_are_not_text(write):
    expected = "deploy.yaml:1: the key 8080 is not text; put it in quotes"
    assert problems(write("8080: x\n")) == [expected]


def test_two_models_of_one_name(write):
    path = write(GOOD + "  - name: one\n    source: org/other\n")
    assert problems(path) == [
        "deploy.yaml:6: models[1].name: another model is named 'one' already; names must be unique"
    ]


def test_anchors_and_merges(write):
    path = write(
        """\
models:
  - &first
    name: one
    source: org/one
    kv: {budget: 1GiB}
  - <<: *first
    name: two
"""
    )
    one, two = load_config(path).models
    assert (two.name, two.source, two.kv) == ("two", "org/one", one.kv)
    assert one.kv.budget == 1024**3


@pytest.mark.parametrize("value", [".inf", ".nan", "-1", "soon"])
def test_a_timeout_is_a_finite_number(write, value):
    (problem,) = problems(write(f"server: {{shutdown_timeout_s: {value}}}\n"))
    assert "server.shutdown_timeout_s: expected a number of at least 0" in problem


@pytest.mark.parametrize(
    ("written", "expected"),
    [("4MiB", 4 * 1024**2), ("1.5 GB", 1_500_000_000), ("512", 512), ("0", 0), ("2KB", 2000)],
)
def test_sizes(write, written, expected):
    assert load_config(write(f"server: {{max_body: {written}}}\n")).server.max_body == expected


def test_a_key_is_never_shown(write):
    path = write('server:\n  keys: [5551234, ""]\n')
    shown = "\n".join(problems(path, "server.keys.0=778899"))
    assert "server.keys[0]" in shown
    assert "server.keys[1]" in shown
    assert "555" not in shown
    assert "778" not in shown
    path = write("server: {keys: [secret-one]}\n")
    assert "secret-one" not in repr(load_config(path))


def test_a_single_key_is_told_to_be_a_list_without_being_shown(write):
    (problem,) = problems(write("server: {keys: secret}\n"))
    assert problem.startswith("deploy.yaml:1: server.keys: expected ")
    assert problem.endswith("got one value; write [...]")
    (problem,) = problems(write("server: {keys: [4711]}\n"))
    assert problem.endswith("got another type; put the key in quotes")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("tls: {certificate: a.pem}", "server.tls: certificate and key go together"),
        ("tls: {ca: a.pem}", "server.tls: certificate and key go together"),
        ("keys: [good, 'sha256:abc']", "server.keys: item 1 begins with sha256: but"),
        ("insecure: [everything]", "server.insecure[0]: expected one of keys or tls"),
    ],
)
def test_what_belongs_together_is_told_in_its_own_words(tmp_path, section, told):
    path = tmp_path / "config.yaml"
    path.write_text(f"server:\n  {section}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert f"{path}:2: {told}" in str(caught.value)
    assert "abc" not in str(caught.value)


def test_files_of_the_server_are_sought_beside_the_yaml(tmp_path, monkeypatch):
    path = tmp_path / "etc" / "config.yaml"
    path.parent.mkdir()
    path.write_text("server: {key_file: k.json, tls: {certificate: /c.pem, key: k.pem}}\n")
    monkeypatch.chdir(tmp_path)
    server = load_config(path, ["server.tls.ca=ca.pem"]).server
    assert server.key_file == str(path.parent / "k.json")
    assert server.tls.certificate == "/c.pem"
    assert server.tls.key == str(path.parent / "k.pem")
    assert server.tls.ca == str(tmp_path / "ca.pem")
