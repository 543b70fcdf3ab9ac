"""Operators in C++ for twostroke's CPU backend: where the library is and what it can do.

`com.microsoft::MatMulNBits` nodes whose domain is changed to `twostroke` run on it, in any session
whose options have it (`SessionOptions.register_custom_ops_library(str(library_path()))`).
"""

from twostroke_kernels.library import isa, library_path, pack, packed_bytes

LAYOUT_VERSION = 1
"""Raised when packed weights of an earlier version can no longer be read."""

__all__ = ["LAYOUT_VERSION", "isa", "library_path", "pack", "packed_bytes"]
