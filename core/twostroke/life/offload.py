"""A model on two devices: how many layers must leave the one, and what a step then costs.

With W bytes of weights that both strokes load, E of them in the tables of the vocabulary, K bytes
of KV cache and L layers, a device keeps, without its first n layers,

    kept(n) = E + (L - n) / L * (W - E + K) + workspace

and a decode step takes at least

    step(n) = front bytes / front bandwidth + back bytes / back bandwidth

because the halves run one after the other. Layers are taken to be alike; the plan of the halves
themselves, made before anything is allocated, has the last word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from twostroke.errors import ConfigError, OutOfMemoryError

_HEADROOM = 0.9  # of the device's memory; the rest is for what is not planned


@dataclass(frozen=True, slots=True)
class Load:
    """What a whole model would take on a device, in bytes; see the module."""

    num_layers: int
    weights_bytes: int
    table_bytes: int
    kv_bytes: int
    workspace_bytes: int

    def kept_bytes(self, num_front_layers: int) -> int:
        """What it takes without its first layers."""
        share = (self.num_layers - num_front_layers) / self.num_layers
        layers_bytes = self.weights_bytes - self.table_bytes + self.kv_bytes
        return self.table_bytes + math.ceil(share * layers_bytes) + self.workspace_bytes


def fewest_front_layers(name: str, load: Load, memory_bytes: int | None) -> int:
    """How many layers must go elsewhere, so that the others fit `memory_bytes`; 0: none.

    Raises:
        ConfigError: the memory is not known.
        OutOfMemoryError: not even the last layer fits with the head.
    """
    if memory_bytes is None:
        raise ConfigError(
            [f"the backend {name!r} does not tell its memory: say how many `offload.layers`"]
        )
    room = int(memory_bytes * _HEADROOM)
    for num_front in range(load.num_layers):
        if load.kept_bytes(num_front) <= room:
            return num_front
    least = load.kept_bytes(load.num_layers - 1)
    raise OutOfMemoryError(
        f"The last layer and the head take {_mib(least)} on the backend {name!r}, which has "
        f"{_mib(room)} to give: lower `kv.budget` or `context_tokens`, or use another precision."
    )


@dataclass(frozen=True, slots=True)
class Half:
    """The layers that one backend has. `step_bytes`: what a decode step of one row reads."""

    backend: str
    first_layer: int
    last_layer: int
    step_bytes: int
    read_bytes_per_s: float | None

    @property
    def step_s(self) -> float | None:
        """The least a step takes here; None where the bandwidth is not known."""
        return self.step_bytes / self.read_bytes_per_s if self.read_bytes_per_s else None

    def sentence(self) -> str:
        """E.g. `layers 0 to 19 on cpu, 90.1 MiB a step, at least 4.1 ms`."""
        step_s = self.step_s
        time = "" if step_s is None else f", at least {step_s * 1e3:.3g} ms"
        return (
            f"layers {self.first_layer} to {self.last_layer} on {self.backend}, "
            f"{_mib(self.step_bytes)} a step{time}"
        )


def cost_sentence(front: Half, back: Half) -> str:
    """Where the layers run and what a step costs, before it is paid."""
    parts = f"{front.sentence()}; {back.sentence()} with the head"
    if front.step_s is None or back.step_s is None:
        return f"{parts}; what a step takes is not known: not both devices tell their bandwidth"
    return f"{parts}; at most {1 / (front.step_s + back.step_s):.3g} tokens a second alone"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
