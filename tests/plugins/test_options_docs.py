"""The table of backend options in docs/configuration.md names every option and its meaning."""

from pathlib import Path

import pytest

from twostroke_backends import cpu, cuda, directml

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", [cpu, cuda, directml], ids=lambda backend: backend.NAME)
def test_every_option_is_documented(backend):
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{backend.NAME}` |")]
    assert len(rows) == len(backend.OPTIONS)
    for option, row in zip(backend.OPTIONS, rows, strict=True):
        assert f"`{option.name}`" in row
        assert f"{option.help}; {option.expected()}" in row
