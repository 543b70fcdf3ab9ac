"""Chooses which matrices get 8 bits and which 4, by what each costs the model's own answers.

A group of matrices at a time is put at 4 bits, everything else left in floats, and the KL
divergence from the model's own distribution is measured on calibration text. Groups are then
promoted to 8 bits in the order of divergence saved for each byte it takes, as many as it needs for
the model as a whole to come within the target. That 8 bits lose next to nothing is taken for
granted here, and measured on the finished bundle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from twostroke_export.groups import Group, Matrix
from twostroke_export.precision import TARGET_KL, Importance, Lowering
from twostroke_export.prefix import Prefix
from twostroke_export.quantise import QuantisedMatrix, dequantise, quantise
from twostroke_export.stand_in import standing_in

NUM_TOKENS = 256  # of calibration text: enough to rank, and a run for each group must be short
_LOW, _HIGH = 4, 8


@dataclass(frozen=True, slots=True)
class Mixture:
    """bits: of each matrix by its parameter's name; group_bits: of each group by its label.

    mean_kl: measured on the calibration text with these bits, 8 taken for lossless.
    """

    bits: Mapping[str, int]
    group_bits: Mapping[str, int]
    mean_kl: float


def choose_bits(
    model: Any,
    groups: Sequence[Group],
    token_ids: Sequence[int],
    lowering: Lowering,
    *,
    target_kl: float = TARGET_KL,
    budget_bytes: int | None = None,
    report: Callable[[float], None] = lambda _: None,
) -> Mixture:
    """The bits of each group, so that KL <= `target_kl` where `budget_bytes` allows it.

    `budget_bytes` bounds the groups' bytes together; None leaves them free. The same model, text
    and options give the same answer. The model is as before afterwards.
    """
    prefix = Prefix(model, token_ids)
    store = _Store(model, lowering.importance, lowering)
    costs = []
    for number, group in enumerate(groups):
        costs.append(_cost(model, prefix, store, group))
        report(0.9 * (number + 1) / len(groups))
    extra = [
        group.num_bytes(lowering.blocks(_HIGH)) - group.num_bytes(lowering.blocks(_LOW))
        for group in groups
    ]
    ranked = sorted(range(len(groups)), key=lambda i: (-costs[i] / extra[i], i))
    most = _affordable(ranked, extra, groups, lowering, budget_bytes)

    def measured(num_promoted: int) -> float:
        low = [groups[i] for i in ranked[num_promoted:]]
        with standing_in(model, store.makers(low)):
            return prefix.divergence()

    num_unseen = min(costs.count(float("inf")), most)
    num_promoted, mean_kl = _fewest(measured, num_unseen, most, target_kl)
    report(1.0)
    promoted = {groups[i] for i in ranked[:num_promoted]}
    bits = {group: _HIGH if group in promoted else _LOW for group in groups}
    return Mixture(
        {matrix.name: bits[group] for group in groups for matrix in group.matrices},
        {group.label: bits[group] for group in groups},
        mean_kl,
    )


class _Store:
    """The layers' matrices at 4 bits, made on first use and kept: an eighth of the model."""

    def __init__(self, model: Any, importance: Importance, lowering: Lowering) -> None:
        self._parameters = dict(model.named_parameters())
        self._importance = importance
        self._blocks = lowering.blocks(_LOW)
        self._made: dict[str, QuantisedMatrix] = {}

    def makers(self, groups: Sequence[Group]) -> dict[str, Callable[[], torch.Tensor]]:
        """For each matrix a function that makes what 4 bits leave of it, shaped as it is stored."""
        return {
            matrix.name: functools.partial(self._lossy, matrix)
            for group in groups
            for matrix in group.matrices
        }

    def fill(self, group: Group) -> None:
        """Quantises a group's matrices, from the parameters as they are now."""
        for matrix in group.matrices:
            stored = self._parameters[matrix.name].detach().float()
            rows = (stored if matrix.is_out_in else stored.mT).reshape(-1, matrix.num_in)
            importance = self._importance.get(matrix.name)
            self._made[matrix.name] = quantise(rows.numpy(), self._blocks, importance)

    def _lossy(self, matrix: Matrix) -> torch.Tensor:
        parameter = self._parameters[matrix.name]
        rows = torch.from_numpy(dequantise(self._made[matrix.name], matrix.num_in))
        shape = parameter.shape if matrix.is_out_in else parameter.mT.shape
        lossy = rows.reshape(shape)
        return (lossy if matrix.is_out_in else lossy.mT.contiguous()).to(parameter.dtype)


def _cost(model: Any, prefix: Prefix, store: _Store, group: Group) -> float:
    """The KL divergence when this group alone has 4 bits; infinite where that cannot be seen."""
    store.fill(group)
    makers = store.makers([group])
    with prefix.skipping_to(group.matrices[0].name), standing_in(model, makers) as used:
        found = prefix.divergence()
    return found if used == set(makers) else float("inf")


def _affordable(
    ranked: Sequence[int],
    extra: Sequence[int],
    groups: Sequence[Group],
    lowering: Lowering,
    budget_bytes: int | None,
) -> int:
    """How many groups of `ranked` can be promoted within the budget."""
    if budget_bytes is None:
        return len(ranked)
    spent = sum(group.num_bytes(lowering.blocks(_LOW)) for group in groups)
    for number, i in enumerate(ranked):
        spent += extra[i]
        if spent > budget_bytes:
            return number
    return len(ranked)


def _fewest(
    measured: Callable[[int], float], least: int, most: int, target_kl: float
) -> tuple[int, float]:
    """The smallest number from `least` to `most` that meets the target, or `most`; with its KL.

    Halves the range: more promotions are taken to be no worse than fewer.
    """
    low, high = least, most
    best = measured(most)
    while low < high and best <= target_kl:
        middle = (low + high) // 2
        found = measured(middle)
        if found <= target_kl:
            high, best = middle, found
        else:
            low = middle + 1
    return high, best
