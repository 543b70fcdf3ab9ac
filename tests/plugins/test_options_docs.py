"""The table of backend options in docs/configuration.md names every option and its meaning."""

from pathlib import Path

import pytest

from twostroke_backends import cpu, cuda, directml, openvino, plugin_ep, webgpu
from twostroke_backends.openvino_properties import OPTIONS as OPENVINO
from twostroke_backends.plugin_ep_providers import PROVIDERS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "configuration.md").read_text(encoding="utf-8")
BACKENDS = (DOCS / "backends.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "backend", [cpu, cuda, directml, openvino, plugin_ep, webgpu], ids=lambda backend: backend.NAME
)
def test_every_option_is_documented(backend):
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{backend.NAME}` |")]
    assert len(rows) == len(backend.OPTIONS)
    for option, row in zip(backend.OPTIONS, rows, strict=True):
        assert f"`{option.name}`" in row
        assert f"{option.help}; {option.expected()}" in row


@pytest.mark.parametrize(
    "provider", [p for p in PROVIDERS.values() if p.options != OPENVINO], ids=lambda p: p.name
)
def test_every_option_of_a_known_provider_is_documented(provider):
    section = BACKENDS.split(f"`{provider.name}` (")[1].split("`ExecutionProvider` (")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    for option, row in zip(provider.options, rows, strict=False):
        assert row == f"| `{option.name}` | {option.help}; {option.expected()} |"
    assert len(rows) >= len(provider.options)


def test_what_runs_where_names_every_backend():
    for backend in (cpu, cuda, directml, openvino, plugin_ep, webgpu):
        assert f"| `{backend.NAME}` |" in BACKENDS
