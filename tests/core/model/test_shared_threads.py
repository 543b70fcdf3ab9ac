from __future__ import annotations

import logging
from typing import Any

import pytest

from twostroke.backends import BackendSpec, Device, ProbeResult
from twostroke.backends.discovery import Plugins
from twostroke.config.schema import ModelConfig
from twostroke.errors import BackendError
from twostroke.model import shared_threads
from twostroke.model.shared_threads import share_threads_of


def spec(name: str, *, shares: bool, priority: int = 0, found: bool = True) -> BackendSpec:
    device = Device(0, name, "cpu", details={"threads": "6"})
    result = ProbeResult((device,)) if found else ProbeResult(reason="it is not here")
    return BackendSpec(
        name,
        1,
        "",
        lambda: result,
        None,  # type: ignore[arg-type]  # never opened
        priority,
        threads_option="num",
        shares_threads=shares,
    )


PLUGINS = Plugins(
    {
        each.name: each
        for each in (
            spec("cpu", shares=True),
            spec("gpu", shares=False),
            spec("away", shares=False, priority=9, found=False),
        )
    },
    {},
    (),
)


def model(name: str, **settings: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": name, "source": "x", "backend": "cpu", **settings})


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pools that were asked for."""
    sizes: list[int] = []
    monkeypatch.setattr(shared_threads, "share_threads", sizes.append)
    return sizes


@pytest.mark.parametrize(
    ("models", "size"),
    [
        ([model("a"), model("b")], 6),
        ([model("a"), model("b", backend="auto")], 6),
        ([model("a"), model("b", prefill={"backend": "gpu"})], 6),
        ([model("a"), model("b"), model("c", backend="gpu")], 6),
        ([model(name, options={"num": 3}) for name in "ab"], 3),
        ([model("a", options={"num": 6}), model("b")], 6),
    ],
)
def test_several_models_that_want_the_same_share(
    models: list[ModelConfig], size: int, shared: list[int]
) -> None:
    assert share_threads_of(models, PLUGINS) == size
    assert shared == [size]


@pytest.mark.parametrize(
    "models",
    [
        [model("a")],
        [model("a"), model("b", backend="gpu")],
        [model("a"), model("b", backend="nowhere")],
        [model(name, backend="gpu") for name in "ab"],
        [model(name, options={"spinning": False}) for name in "ab"],
        [model(name, prefill={"options": {"num": 3}}) for name in "ab"],
    ],
)
def test_others_keep_threads_of_their_own(models: list[ModelConfig], shared: list[int]) -> None:
    assert share_threads_of(models, PLUGINS) is None
    assert shared == []


@pytest.mark.parametrize("options", [{"num": 2}, {"spinning": False}])
def test_models_that_want_different_things_keep_their_own_and_the_log_says_so(
    options: dict[str, Any], shared: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "twostroke")
    assert share_threads_of([model("a"), model("b", options=options)], PLUGINS) is None
    assert shared == []
    assert "no shared threads: a wants 6" in caplog.text
    assert "b wants " in caplog.text


def test_a_process_that_cannot_share_goes_on_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: int) -> None:
        raise BackendError("there is a pool already.")

    monkeypatch.setattr(shared_threads, "share_threads", refuse)
    assert share_threads_of([model("a"), model("b")], PLUGINS) is None
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "no shared threads: there is a pool already.")
    ]
