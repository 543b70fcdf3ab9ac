"""Models on the echo backend: an answer is `→`, the prompt again, and the end, a byte a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from twostroke.backends.discovery import Plugins, load_plugins
from twostroke.model import Model
from twostroke.testing import echo, make_echo_bundle

OpenModel = Callable[..., Model]


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    return load_plugins(extra=[echo])


@pytest.fixture(scope="session")
def echo_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_echo_bundle(tmp_path_factory.mktemp("bundles") / "echo")


@pytest.fixture
def open_model(plugins: Plugins, echo_path: Path) -> Iterator[OpenModel]:
    """Opens models and closes them when the test ends."""
    opened: list[Model] = []

    def open_(source: Path | str | None = None, **settings: Any) -> Model:
        settings = {"backend": "echo", "plugins": plugins, **settings}
        opened.append(Model.open(source or echo_path, **settings))
        return opened[-1]

    yield open_
    for model in opened:
        model.close()


@pytest.fixture(scope="module")
def model(plugins: Plugins, echo_path: Path) -> Iterator[Model]:
    with Model.open(echo_path, backend="echo", plugins=plugins) as model:
        yield model
