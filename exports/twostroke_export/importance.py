"""How much each input channel of a matrix matters: the mean square of what it is given.

The squared error of a product x @ W^T is, channels taken for independent, the sum over channels of
E[x_i^2] times the squared error of W's column i. Scales of 4-bit blocks that are chosen by it keep
the columns that large activations meet, at no cost at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke_export.balance import measure_rms
from twostroke_export.precision import Importance

_FLOOR = 1e-3  # of the mean: a channel that the text left silent still counts a little


def measure_importance(model: Any, token_ids: Sequence[int]) -> Importance:
    """From each matrix's parameter name to float32 [in]; `token_ids` [tokens] is the text."""
    rms = measure_rms(model, token_ids)
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() in rms:
            mean_square = rms[parameter.data_ptr()].square()
            found[name] = (mean_square + _FLOOR * mean_square.mean()).numpy()
    return found
