"""Names, aliases and the default: told with the line that is wrong."""

from __future__ import annotations

import pytest

from twostroke.config import load_config
from twostroke.errors import ConfigError


def problems(folder, text: str) -> list[str]:
    path = folder / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return [line.removeprefix(f"{path}") for line in caught.value.problems]


MODELS = """\
models:
  - {name: a, source: x, aliases: [one]}
  - name: b
    source: x
"""


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("    aliases: [two, a]\n", ":5: models[1].aliases[1]: a model has this name or alias 'a'"),
        ("    aliases: [one]\n", ":5: models[1].aliases[0]: a model has this name or alias 'one'"),
        ("    aliases: [c, c]\n", ":5: models[1].aliases[1]: a model has this name or alias 'c'"),
        ("  - {name: a, source: x}\n", ":5: models[2].name: another model is named 'a'"),
        ("  - {name: one, source: x}\n", ":2: models[0].aliases[0]: a model has this name"),
        (
            "server: {default_model: c}\n",
            ":5: server.default_model: expected the name of a model (a, b), got 'c'",
        ),
    ],
)
def test_what_is_wrong_is_told_where_it_stands(tmp_path, more, told):
    (line,) = problems(tmp_path, MODELS + more)
    assert line.startswith(told), line


def test_a_default_may_be_an_alias(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(MODELS + "server: {default_model: one}\n")
    assert load_config(path).server.default_model == "one"
