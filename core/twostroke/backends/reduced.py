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
class OpensDecode(Protocol):
    """A backend whose decode sessions do more than the graph says, for an engine that knows of it:
    reduce their logits, as above, or record their runs (`ReplaysRuns`). Logits then stay on the
    device.

    A backend need not have it; nor does every graph allow it, and who opens a session by
    `open_session` gets the graph as it is.
    """

    def open_decode_session(self, graph: Path) -> Session:
        """Loads a decode graph as `open_session` does, with what backend and graph allow of this.

        Raises:
            PlacementError, BundleError: as `open_session`.
        """
        ...
