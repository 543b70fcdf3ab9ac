"""Loads model and tokenizer through optimum and transformers, in fp32, eager, on the CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from twostroke.errors import ExportError
from twostroke_export.gguf_reading import reading_once
from twostroke_export.quiet import quiet
from twostroke_export.source import Source


@dataclass(frozen=True, slots=True)
class Loaded:
    """A source model in memory: the torch module and its transformers tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: valid ids lie below it."""
        return int(self.model.get_input_embeddings().weight.shape[0])


def load(source: Source, on_progress: Callable[[float], None] = lambda _: None) -> Loaded:
    """Reads the checkpoint into a torch model in evaluation mode; `on_progress` gets 0 to 1.

    Raises:
        ExportError: the files do not make a model, or the tokenizer belongs to another one.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from optimum.exporters.tasks import TasksManager
    from transformers import AutoTokenizer

    options = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    with (
        quiet(),
        reading_once() if source.gguf_file else _read_not_mapped(),
        _watched(on_progress, is_gguf=source.gguf_file is not None) as missing,
    ):
        try:
            model = TasksManager.get_model_from_task(
                "text-generation",
                str(source.folder),
                framework="pt",
                library_name="transformers",
                torch_dtype=torch.float32,
                **options,
            )
            tokenizer = AutoTokenizer.from_pretrained(str(source.folder), **options)
        except Exception as error:  # transformers raises whatever it met
            raise _explain(source, error) from error
        model = model.eval().requires_grad_(False)
        model.set_attn_implementation("eager")
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ExportError(
            f"{source.name} lacks the weight {missing[0]}{more}; download the model again."
        )
    loaded = Loaded(model, tokenizer)
    _check(source, loaded)
    return loaded


def _check(source: Source, loaded: Loaded) -> None:
    if loaded.model.get_output_embeddings() is None:
        raise ExportError(f"{source.name} has no language-model head; export a causal model.")
    backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(
            f"The tokenizer of {source.name} has no tokenizer.json form, which serving needs; "
            f"convert it with transformers first."
        )
    highest = max(loaded.tokenizer.get_vocab().values(), default=0)
    if highest >= loaded.vocab_size:
        raise ExportError(
            f"The tokenizer of {source.name} has the id {highest} but the model only takes ids "
            f"below {loaded.vocab_size}: it belongs to another model."
        )


def _explain(source: Source, error: Exception) -> ExportError:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ExportError(
        f"{source.name} could not be loaded ({type(error).__name__}: {first_line[:300]}); check "
        f"that the model's files are complete and of a known architecture."
    )


@contextlib.contextmanager
def _read_not_mapped() -> Iterator[None]:
    """Has checkpoints read tensor by tensor instead of mapped whole.

    Mapped, a half-precision checkpoint stays in memory beside its fp32 copy until the last tensor
    is converted; and fp32 parameters would be the file itself, which someone may replace.
    """
    from transformers import modeling_utils

    opening = modeling_utils.safe_open

    def read(*args: Any, **options: Any) -> Any:
        return opening(*args, **{**options, "backend": "pread"})

    modeling_utils.safe_open = read
    try:
        yield
    finally:
        modeling_utils.safe_open = opening


@contextlib.contextmanager
def _watched(on_progress: Callable[[float], None], *, is_gguf: bool) -> Iterator[list[str]]:
    """Silences transformers' own bars and yields the list that missing weights are added to.

    transformers fills missing weights with random numbers and only warns; and what its bars would
    show goes to `on_progress`. Both are reached through its module globals.
    """
    from transformers import core_model_loading, modeling_gguf_pytorch_utils, modeling_utils
    from transformers.utils import logging

    missing: list[str] = []
    report = modeling_utils.log_state_dict_report
    # A GGUF file is dequantised (slow) and then handed over (nothing to show).
    with_bar = modeling_gguf_pytorch_utils if is_gguf else core_model_loading
    bar = with_bar.tqdm

    def collect(*args: Any, loading_info: Any, **kwargs: Any) -> Any:
        missing.extend(sorted(loading_info.missing_keys))
        return report(*args, loading_info=loading_info, **kwargs)

    def follow(items: Sequence[Any], **_: Any) -> Iterator[Any]:
        for number, item in enumerate(items):
            on_progress(number / len(items))
            yield item

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    modeling_utils.log_state_dict_report = collect
    with_bar.tqdm = follow
    try:
        yield missing
    finally:
        modeling_utils.log_state_dict_report = report
        with_bar.tqdm = bar
        if was_enabled:
            logging.enable_progress_bar()
