"""twostroke's own operators for the CPU: whether they are here, and graphs that run on them.

They come in the package `twostroke_kernels`, which is optional. Nothing else in this project knows
of it: bundles hold standard operators, which are swapped when a graph is loaded.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostroke_backends.kernel_swap import SwappedGraph, swap_products

PACKAGE = "twostroke_kernels"
INSTALL = "pip install twostroke-kernels (or ./plugins/twostroke_kernels of a checkout)"


@dataclass(frozen=True, slots=True)
class Kernels:
    """The installed library. `identity` names what its packed weights depend on."""

    library: Path
    isa: str
    identity: str
    pack: Callable[..., Any]

    def register(self, options: Any) -> None:
        """Lets sessions with these SessionOptions use the operators. Mutates `options`."""
        options.register_custom_ops_library(str(self.library))

    def swapped(self, graph: Path) -> SwappedGraph:
        """`graph` on these operators.

        Raises:
            OSError, ValueError: as `swap_products`.
        """
        return swap_products(graph, self.pack)


@functools.cache
def find_kernels() -> Kernels | str:
    """The library, or a sentence on why it isn't used and what that costs."""
    try:
        package = importlib.import_module(PACKAGE)
        library, isa = package.library_path(), package.isa()
    except (ImportError, AttributeError):  # a folder of that name is on the path in a checkout
        return (
            "the package twostroke-kernels is not installed, so matrix products run on ONNX "
            f"Runtime's operators, which take up to twice as long: {INSTALL}"
        )
    except OSError as error:
        return f"the library of twostroke-kernels cannot be loaded: {error}"
    if isa is None:
        wanted = os.environ.get("TWOSTROKE_KERNELS_ISA")
        return f"TWOSTROKE_KERNELS_ISA={wanted!r} names no instruction set that is here"
    return Kernels(library, isa, f"{PACKAGE} {package.LAYOUT_VERSION}", package.pack)
