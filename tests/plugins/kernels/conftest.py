"""The cases of matrix products; all tests of this folder need the package twostroke-kernels."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CASES = Path(__file__).with_name("product_cases.py")


@pytest.fixture(scope="session")
def cases() -> ModuleType:
    try:
        from twostroke_kernels import library_path  # a folder of that name is no package
    except ImportError:
        pytest.skip("twostroke-kernels is not installed")
    assert library_path().is_file()
    spec = importlib.util.spec_from_file_location("product_cases", CASES)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
