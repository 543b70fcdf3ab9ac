"""The schema, `config.yaml`, the shipped JSON schema and the docs say the same."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from twostroke.config import Config, load_config
from twostroke.config.json_schema import json_schema, plain_schema, resolve, schema_text
from twostroke.config.reference import insert_settings

ROOT = Path(__file__).resolve().parents[3]
DEFAULT = ROOT / "config.yaml"


def keys(node, path=()):
    node = resolve(node)
    for name, child in node.get("properties", {}).items():
        yield (*path, name)
        yield from keys(child, (*path, name))
    if "items" in node:
        yield from keys(node["items"], (*path, 0))


def test_config_yaml_is_the_defaults():
    assert load_config(DEFAULT, environ={}) == Config()


@pytest.mark.parametrize("path", list(keys(plain_schema())), ids=lambda p: ".".join(map(str, p)))
def test_config_yaml_shows_every_key_and_the_schema_explains_it(path):
    value = yaml.safe_load(DEFAULT.read_text(encoding="utf-8"))
    node = resolve(plain_schema())
    for part in path:
        value = value[part]
        child = node["items"] if isinstance(part, int) else node["properties"][part]
        node = resolve(child)
    assert node.get("description"), f"{path} has no description"


def test_the_shipped_json_schema_is_current():
    shipped = ROOT / "core/twostroke/config/config.schema.json"
    message = "run: twostroke config schema > core/twostroke/config/config.schema.json"
    assert shipped.read_text(encoding="utf-8") == schema_text(), message


def test_the_tables_of_the_docs_are_current():
    page = ROOT / "docs/configuration.md"
    text = page.read_text(encoding="utf-8")
    assert insert_settings(text) == text, "run: python -m twostroke.config.reference"


@pytest.mark.parametrize(
    "document",
    [
        {},
        yaml.safe_load(DEFAULT.read_text(encoding="utf-8")),
        {"server": {"port": "${PORT}", "max_body": "8MiB", "keys": ["${KEY}"]}},
        {"models": [{"name": "a", "source": "b", "kv": {"budget": "${B:-1GiB}"}}]},
        {"models": [{"name": "a", "source": "b", "context_tokens": "${C}", "precision": "${P}"}]},
    ],
)
def test_the_json_schema_takes_what_the_loader_takes(document):
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)


@pytest.mark.parametrize(
    "document",
    [
        {"server": {"prot": 1}},
        {"server": {"port": 70000}},
        {"server": {"max_body": "big"}},
        {"models": []},
        {"models": [{"name": "a"}]},
        {"models": [{"name": "a", "source": "b", "precision": "in8"}]},
    ],
)
def test_the_json_schema_refuses_what_the_loader_refuses(document):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())


def test_the_json_schema_is_json():
    assert json.loads(schema_text())["title"] == "twostroke configuration"


def test_settings_cannot_be_changed_after_loading():
    with pytest.raises(ValueError, match="frozen"):
        Config().server.port = 1


@pytest.mark.parametrize(("written", "mode"), [("on", "on"), ("off", "off"), ('"off"', "off")])
def test_on_and_off_may_be_written_without_quotes(tmp_path, written, mode):
    path = tmp_path / "config.yaml"
    path.write_text(f"models: [{{name: a, source: b, speculation: {{mode: {written}}}}}]")
    assert load_config(path).models[0].speculation.mode == mode


@pytest.mark.parametrize(
    ("written", "reuse"),
    [("exact", "exact"), ("all", "all"), ("off", "off"), ("false", "off"), ("true", "exact")],
)
def test_reuse_of_prefixes_is_a_word_or_yes_or_no(tmp_path, written, reuse):
    path = tmp_path / "config.yaml"
    kv = f"kv: {{prefixes: {{reuse: {written}}}}}"
    path.write_text(f"models: [{{name: a, source: b, {kv}}}]")
    assert load_config(path).models[0].kv.prefixes.reuse == reuse
