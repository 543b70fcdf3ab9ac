"""Logits reduced on the device: what a decode step answers so that few bytes come to the host.

Beside its logits [batch, 1, vocab], which stay on the device, such a graph takes and answers:

| tensor | shape | dtype |
|---|---|---|
| inverse_temperature (input) | [batch, 1, 1]: 1 / temperature of each row | float32 |
| top_logits | [batch, 1, k]: the highest logits | float32 |
| top_ids | [batch, 1, k]: their ids | int64 |
| block_weights | [batch, 1, blocks]: sums of the weights of BLOCK_IDS neighbouring ids | float32 |

A weight is exp((logit - highest) / temperature).

The sums of the blocks carry what a draw needs of the ids that are not among the highest: how much
they weigh together, and in which block a random number falls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from twostroke.backends.protocol import Session

INVERSE_TEMPERATURE = "inverse_temperature"
TOP_LOGITS = "top_logits"
TOP_IDS = "top_ids"
BLOCK_WEIGHTS = "block_weights"
REDUCED_OUTPUTS = (TOP_LOGITS, TOP_IDS, BLOCK_WEIGHTS)

NUM_TOP = 128
"""More than what the top_k and top_p that models recommend leave: 1.5 kB a row."""

BLOCK_IDS = 256
"""Ids of a block: 600 blocks of a vocabulary of 152,000 take 2.4 kB a row."""


@runtime_checkable
class ReducesLogits(Protocol):
    """A backend whose memory the host reaches slowly, so that it pays to reduce logits there.

    A backend need not have it: all logits of a step are then written to host memory.
    """

    @property
    def reduces_logits(self) -> bool:
        """Whether `open_reducing_session` is wanted for decode."""
        ...

    def open_reducing_session(self, graph: Path) -> Session:
        """Loads a decode graph as `open_session` does, with the tensors of this module beside its
        own; without them where the graph cannot have them.

        Raises:
            PlacementError, BundleError: as `open_session`.
        """
        ...
