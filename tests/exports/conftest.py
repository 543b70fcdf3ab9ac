"""Tiny random models of real architectures, saved as Hugging Face folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    from twostroke_export.testing import tiny_models

    return tiny_models.tiny_tokenizer()


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Saves a random model: `make_model("qwen2", num_hidden_layers=1)` answers its folder."""

    def make(model_type: str, **changes: Any) -> Path:
        from twostroke_export.testing.tiny_models import save_tiny_model

        folder = tmp_path_factory.mktemp("models") / f"tiny-{model_type}"
        return save_tiny_model(folder, model_type, **changes)

    return make


@pytest.fixture(scope="session")
def tiny_llama(make_model: MakeModel) -> Path:
    """A random llama with a tied head; shared, so not to be changed."""
    return make_model("llama", tie_word_embeddings=True)
