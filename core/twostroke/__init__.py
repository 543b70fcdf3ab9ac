"""twostroke: prefill and decode as two ONNX graphs, served as one engine.

import twostroke

with twostroke.Model.open("path/to/bundle") as model:
    for token in model.generate("The capital of France is", max_tokens=24):
        print(token, end="", flush=True)
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostroke.errors import TwostrokeError
from twostroke.types import FinishReason, SamplingParams, Timings

if TYPE_CHECKING:
    from twostroke.config.schema import DEMO_SOURCE
    from twostroke.model import Answer, AsyncAnswer, Completion, Model, Token, ToolCall

__all__ = [  # without `open`: a star import must not hide Python's own
    "DEMO_SOURCE",
    "Answer",
    "AsyncAnswer",
    "Completion",
    "FinishReason",
    "Model",
    "SamplingParams",
    "Timings",
    "Token",
    "ToolCall",
    "TwostrokeError",
]

_LATE = {
    "DEMO_SOURCE": "twostroke.config.schema",
    **dict.fromkeys(
        ("Answer", "AsyncAnswer", "Completion", "Model", "Token", "ToolCall"), "twostroke.model"
    ),
}


def open(source: str | Path, **settings: Any) -> Model:
    """Opens a model: a bundle, whatever can be exported to one, or a YAML file's.

    The same as `Model.open`, which lists the settings.
    """
    from twostroke.model import Model

    return Model.open(source, **settings)


def __dir__() -> list[str]:
    """What is imported late is there too: for completion in a shell."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Imports the model façade when it is first asked for: `twostroke --help` needs none of it."""
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'twostroke' has no attribute {name!r}")
