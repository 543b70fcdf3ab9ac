"""Runs a torch model over one text again and again, each time from a later layer on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class Prefix:
    """A model, a text, and what each of its layers answered to it.

    Attributes:
        log_probs: [tokens, vocab] float32, of the model with its own weights.
    """

    def __init__(self, model: Any, token_ids: Sequence[int]) -> None:
        """Runs the model once over `token_ids` [tokens]; keeps one hidden state a layer."""
        self._model = model
        self._ids = torch.tensor([list(token_ids)])
        self._path, self._layers = _find_layers(model)
        self._answers: list[Any] = [None] * len(self._layers)
        hooks = [
            layer.register_forward_hook(self._keep(number))
            for number, layer in enumerate(self._layers)
        ]
        try:
            self.log_probs = self.run()
            self._probs = self.log_probs.exp()
        finally:
            for hook in hooks:
                hook.remove()
        if not self._is_repeatable():
            self._layers = []  # the layers hand on more than what they answer

    def run(self) -> torch.Tensor:
        """The log probabilities [tokens, vocab] of the model as it is now."""
        with torch.no_grad():
            output = self._model(input_ids=self._ids, use_cache=False)
        return torch.log_softmax(output.logits[0].float(), -1)

    def divergence(self) -> float:
        """Mean KL(own weights || weights as they are now) in nats over the text."""
        found = self.run()
        return float((self._probs * (self.log_probs - found)).sum(-1).mean())

    @contextlib.contextmanager
    def skipping_to(self, name: str) -> Iterator[None]:
        """Within the block, layers before that of the parameter `name` answer from memory."""
        skipped = self._layers[: self._layer_of(name)]
        for layer, answer in zip(skipped, self._answers, strict=False):
            layer.forward = lambda *_, answer=answer, **__: answer  # shadows the class's own
        try:
            yield
        finally:
            for layer in skipped:
                del layer.forward

    def _keep(self, number: int) -> Any:
        def keep(_module: Any, _inputs: Any, answer: Any) -> None:
            self._answers[number] = answer

        return keep

    def _layer_of(self, name: str) -> int:
        inside = name.removeprefix(f"{self._path}.")
        number = inside.partition(".")[0]
        return int(number) if inside != name and number.isdecimal() else 0

    def _is_repeatable(self) -> bool:
        last = f"{self._path}.{len(self._layers) - 1}.x"
        if any(answer is None for answer in self._answers):
            return False
        with self.skipping_to(last):
            return bool(torch.allclose(self.run(), self.log_probs, atol=1e-3))


def _find_layers(model: Any) -> tuple[str, list[Any]]:
    """The longest list of modules of one kind, and its name: the decoder's layers."""
    lists = [
        (name, list(module))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList)
    ]
    return max(lists, key=lambda found: len(found[1]), default=("", []))
