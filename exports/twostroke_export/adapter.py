"""A LoRA adapter beside its base model: checked before either is loaded."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from twostroke.bundle.open import hash_file
from twostroke.errors import ExportError, InstallError
from twostroke_export.folder import ADAPTER_CONFIG, read_json
from twostroke_export.safetensors_file import Shapes, read_shapes

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_BEHIND_MODULE = re.compile(r"\.(?:lora_|base_layer\.|token_adapter\.|[^.]+$)")
# Kinds whose effect depends on the prompt, or that make another architecture: nothing to merge.
_UNMERGEABLE = ("alora_invocation_tokens", "arrow_config", "layer_replication")


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter on this machine. `shapes` are those of its tensors, `facts` go into the manifest.

    The facts are its name, the hash of its weights and the name of the base model it tells.
    """

    folder: Path
    facts: Mapping[str, Any]
    shapes: Shapes

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def base(self) -> str:
        """The model that the adapter was trained on, as it says."""
        return str(self.facts["base"])

    def modules(self) -> set[str]:
        """Paths of the modules it changes, as the base model names them."""
        return {_module_of(name) for name in self.shapes}

    def rewritten_modules(self) -> set[str]:
        """Paths of the modules to whose weights it adds, or that it replaces whole."""
        return {_module_of(name) for name in self.shapes if ".token_adapter." not in name}


def find_adapter(folder: Path, base_name: str, base_shapes: Shapes) -> Adapter:
    """Checks the adapter in `folder`, against the base model's shapes as far as they are known.

    Raises:
        ExportError: a file is missing or damaged, no LoRA, or made for another model.
        InstallError: the package that merges it is missing.
    """
    folder = folder.expanduser().absolute()
    _check_files(folder)
    config = read_json(folder / ADAPTER_CONFIG)
    _check_kind(folder, config)
    shapes = read_shapes(folder / WEIGHTS)
    if not shapes:
        raise ExportError(f"{folder / WEIGHTS} holds no tensors; save the adapter again.")
    base = PurePosixPath(str(config.get("base_model_name_or_path") or "unknown")).name
    facts = {"name": folder.name, "base": base, "sha256": hash_file(folder / WEIGHTS)}
    adapter = Adapter(folder, facts, shapes)
    _check_shapes(adapter, base_name, base_shapes)
    if importlib.util.find_spec("peft") is None:
        raise InstallError(
            "Merging an adapter needs the Python package 'peft', which is not installed; "
            'run: pip install "twostroke[export]"'
        )
    return adapter


def misfit(adapter: Adapter, base_name: str, what: str) -> ExportError:
    """The refusal of an adapter that belongs to another model than `base_name`."""
    return ExportError(
        f"The adapter {adapter.folder} does not fit {base_name}: {what}. It was trained on "
        f"{adapter.base}; name that model as the source."
    )


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise ExportError(f"There is no adapter at {folder}; name a folder with {ADAPTER_CONFIG}.")
    if not (folder / ADAPTER_CONFIG).is_file() and (folder / "config.json").is_file():
        raise ExportError(f"{folder} is a whole model, no adapter; name it as the source.")
    for name in (ADAPTER_CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ExportError(
                f"The adapter {folder} has no {name}; save it with peft's save_pretrained()."
            )


def _check_kind(folder: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ExportError(
            f"{folder / ADAPTER_CONFIG} describes an adapter of the kind {kind!r}; only LORA is "
            f"merged, so merge this one with peft and export the result."
        )
    refused = [name for name in _UNMERGEABLE if config.get(name)]
    # Both sides of a tied head would share one product, which a merge would add twice.
    refused += ["ensure_weight_tying"] if config.get("ensure_weight_tying") else []
    if refused:
        raise ExportError(
            f"{folder / ADAPTER_CONFIG} asks for {refused[0]}, which cannot be merged into the "
            f"weights; train the adapter without it."
        )


def _check_shapes(adapter: Adapter, base_name: str, own: Shapes) -> None:
    """Compares what both sides name alike; a checkpoint may use other names than the module."""
    for module, expected in (*_products(adapter.shapes), *_replaced(adapter.shapes)):
        shape = own.get(f"{module}.weight")
        if shape is not None and sorted(shape) != sorted(expected):
            raise misfit(
                adapter,
                base_name,
                f"{module} is {_times(shape)} there and {_times(expected)} here",
            )


def _products(shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each module with a low-rank product, and how many values that gives and takes."""
    for name, shape in shapes.items():
        other = name.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B")
        if other != name and len(shape) == 2 and len(shapes.get(other, ())) == 2:
            yield _module_of(name), (shapes[other][0], shape[1])


def _replaced(shapes: Shapes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each module whose weight comes with the adapter as a whole."""
    for name, shape in shapes.items():
        if name.endswith(".weight") and ".lora_" not in name:
            yield _module_of(name), shape


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _module_of(name: str) -> str:
    """`model.layers.0.mlp.up_proj` for `base_model.model.model.layers.0.mlp.up_proj.lora_A.weight`.

    Of a tensor that replaces one of the model, the module that holds it.
    """
    return _BEHIND_MODULE.split(name.removeprefix(_PREFIX), maxsplit=1)[0]
