"""Where the examples are, and what several tests ask of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from twostroke.server.operations import operations

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def deployments() -> Path:
    """The folder of examples/deployments."""
    return ROOT / "examples" / "deployments"


@pytest.fixture(scope="session")
def open_routes() -> set[str]:
    """Paths that a server answers without a key."""
    page = SimpleNamespace(answer=None)
    return {route.path for route in operations(page, page).routes if route.is_open}
