"""A decode run for those who time it: as the engine makes it, without looking at the answer."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.engine.runner import Runner
from twostroke.types import TokenId


def decode_step(
    runner: Runner, start_row: int, token_ids: Sequence[TokenId], past_lengths: Sequence[int]
) -> None:
    """Feeds one token to each of some neighbouring rows; see `Runner.decode`.

    Where logits are reduced on the device, only what is made of them comes to the host.

    Raises:
        EngineError: the run failed.
    """
    if runner.reduces_logits:
        ones = [1.0] * len(token_ids)
        runner.decode_reduced(start_row, token_ids, past_lengths, ones)
    else:
        runner.decode(start_row, token_ids, past_lengths)
