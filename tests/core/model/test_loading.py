"""What is said of settings that a bundle does not follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import OpenModel


def test_a_precision_that_the_bundle_does_not_have_is_told(
    open_model: OpenModel, echo_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_model(precision="int4")
    assert f"precision is set to int4, but the bundle {echo_path} is fp32" in caplog.text


@pytest.mark.parametrize("settings", [{}, {"precision": "fp32"}, {"max_rows": 2}])
def test_nothing_is_said_of_a_precision_that_nobody_set_or_that_is_the_bundles(
    open_model: OpenModel, caplog: pytest.LogCaptureFixture, settings: dict[str, object]
) -> None:
    open_model(**settings)
    assert "precision" not in caplog.text
