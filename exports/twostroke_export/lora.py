"""Merges a LoRA adapter into the model it was trained on, through peft.

W becomes W + s B A, with the scale s of the adapter's config (Hu et al. 2021, arXiv:2106.09685).
What follows sees one model, so an export costs and runs the same as without an adapter.
"""

from __future__ import annotations

from typing import Any

import torch

from twostroke.errors import ExportError
from twostroke_export.adapter import Adapter, misfit
from twostroke_export.load import Loaded
from twostroke_export.quiet import quiet

_ADAPTER = "default"


def merge(loaded: Loaded, adapter: Adapter, base_name: str) -> None:
    """Adds the adapter to the model's weights, in place.

    A head that shares its weights with the embedding gets its own copy where either is adapted:
    that is how it was trained. Single tokens trained beside them stay shared.

    Raises:
        ExportError: the adapter does not belong to this model, or peft cannot merge it.
    """
    import peft

    model = loaded.model
    _check_modules(model, adapter, base_name)
    with quiet():
        try:
            _untie(model, adapter)
            config = peft.PeftConfig.from_pretrained(str(adapter.folder))
            config.inference_mode = True
            wrapped = peft.PeftModel(model, config, _ADAPTER)
            found = wrapped.load_adapter(str(adapter.folder), _ADAPTER, is_trainable=False)
            for name in (*found.missing_keys, *found.unexpected_keys):
                raise misfit(adapter, base_name, f"{name} is on one side only")
            wrapped.merge_and_unload(safe_merge=True)
        except ExportError:
            raise
        except Exception as error:  # peft raises errors of several libraries
            raise _explain(adapter, base_name, error) from error
    model.eval().requires_grad_(False)


def _check_modules(model: Any, adapter: Adapter, base_name: str) -> None:
    known = {name for name, _ in model.named_modules()}
    absent = sorted(adapter.modules() - known)
    if absent:
        raise misfit(adapter, base_name, f"that model has no {absent[0]}")


def _untie(model: Any, adapter: Adapter) -> None:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head.weight is not embedding.weight:
        return
    names = {name for name, module in model.named_modules() if module in (head, embedding)}
    if names & adapter.rewritten_modules():
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        model.config.tie_word_embeddings = False


def _explain(adapter: Adapter, base_name: str, error: Exception) -> ExportError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "mismatch" in line and ":" in line), (lines or [""])[-1])
    return ExportError(
        f"The adapter {adapter.folder} could not be merged into {base_name} "
        f"({type(error).__name__}: {told[:300]}); it was trained on {adapter.base}."
    )
