"""What a request must be before a graph sees it."""

from __future__ import annotations

import math

from twostroke.errors import RequestError
from twostroke.types import Request


def check_prompt(request: Request, vocab_size: int) -> None:
    """Refuses what a graph would answer with garbage: Gather wraps negative ids silently.

    Raises:
        RequestError: an empty prompt, an id outside of [0, vocab_size), or a bias that is no
            finite number.
    """
    if not request.prompt_ids:
        raise RequestError("The prompt is empty. Give it at least one token.", param="prompt")
    lowest, highest = min(request.prompt_ids), max(request.prompt_ids)
    if lowest < 0 or highest >= vocab_size:
        culprit = lowest if lowest < 0 else highest
        raise RequestError(
            f"The prompt holds the token id {culprit}; the vocabulary has ids from 0 to "
            f"{vocab_size - 1}.",
            param="prompt",
        )
    for token_id, bias in request.sampling.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"logit_bias names the token id {token_id}; the vocabulary has ids from 0 to "
                f"{vocab_size - 1}.",
                param="logit_bias",
            )
        if not math.isfinite(bias):
            raise RequestError(
                f"logit_bias gives the token id {token_id} the bias {bias}; give a finite number.",
                param="logit_bias",
            )
