"""Which architectures transformers knows, found without importing torch.

Its tables of names lie in modules that import torch, which takes seconds; a wrong model_type is
worth a sentence at once.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"


@functools.cache
def causal_architectures() -> frozenset[str]:
    """The values of `model_type` that transformers has a causal language model for."""
    names = _read_table()
    if not names:  # another version may write its table another way
        from transformers.models.auto import modeling_auto

        names = frozenset(getattr(modeling_auto, _TABLE))
    return names


@functools.cache
def gguf_architectures() -> frozenset[str]:
    """The architectures that transformers reads from GGUF, in its own spelling."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    return frozenset(GGUF_CONFIG_MAPPING) - {"general", "tokenizer"}


def _read_table() -> frozenset[str]:
    """The first element of each pair in the table's literal; empty where there is no such table."""
    spec = importlib.util.find_spec("transformers")  # finds without importing
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder, "models", "auto", "modeling_auto.py")
        if not path.is_file():
            continue
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == _TABLE:
                return frozenset(
                    str(pair.elts[0].value)
                    for pair in ast.walk(statement.value)
                    if isinstance(pair, ast.Tuple) and isinstance(pair.elts[0], ast.Constant)
                )
    return frozenset()
