"""Keeps other libraries' advice off the terminal."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

_CHATTY = ("torch", "torch.onnx", "transformers", "optimum", "onnxscript", "onnx_ir")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences warnings of the libraries that an export calls; their errors still show.

    Other loggers and the standard streams stay as they are: a server may run beside an export.
    """
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
