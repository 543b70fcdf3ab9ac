"""Errors that are handed on must not hold on to what failed."""

from __future__ import annotations

import traceback


def clear_frames(fault: BaseException | None) -> None:
    """Empties the frames that a fault and its causes went through, and that have ended.

    Each holds its function's variables, bindings and buffers of a device among them, for as long
    as somebody holds the error. Its traceback can be printed as before.
    """
    while fault is not None:
        traceback.clear_frames(fault.__traceback__)
        fault = fault.__cause__ or fault.__context__
