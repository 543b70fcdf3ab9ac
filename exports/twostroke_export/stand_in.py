"""Runs a torch model with other weights than its own, without keeping two copies of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


@contextlib.contextmanager
def standing_in(
    model: Any, weights: Mapping[str, Callable[[], torch.Tensor]]
) -> Iterator[set[str]]:
    """Within the block the parameters named in `weights` are what the functions make.

    Each is made when its module runs and dropped behind it. Yields the names of those that were
    used so far: a module that is never called keeps its own weights, and is not among them.
    """
    used: set[str] = set()
    hooks: list[Any] = []
    own: dict[str, torch.Tensor] = {}

    def put(name: str, parameter: Any, make: Callable[[], torch.Tensor]) -> Callable[..., None]:
        def before(*_: Any) -> None:
            own[name] = parameter.data
            parameter.data = make()
            used.add(name)

        return before

    def take_back(name: str, parameter: Any) -> Callable[..., None]:
        def behind(*_: Any) -> None:
            if name in own:
                parameter.data = own.pop(name)

        return behind

    parameters = dict(model.named_parameters())
    try:
        for name, make in weights.items():
            module, parameter = model.get_submodule(name.rpartition(".")[0]), parameters[name]
            hooks.append(module.register_forward_pre_hook(put(name, parameter, make)))
            hooks.append(module.register_forward_hook(take_back(name, parameter)))
        yield used
    finally:
        for hook in hooks:
            hook.remove()
        for name, tensor in own.items():  # a forward that raised
            parameters[name].data = tensor
