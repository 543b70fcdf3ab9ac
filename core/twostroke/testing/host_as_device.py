"""Host memory that plays a device's: reached through addresses only, and counted."""

from __future__ import annotations

import ctypes

from twostroke.backends.ort import Blocks
from twostroke.backends.protocol import Array


class HostAsDevice:
    """A `DeviceMemory` that ONNX Runtime's CPU provider can bind."""

    ort_device = ("cpu", 0)

    def __init__(self) -> None:
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}  # by address
        self.pinned: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.num_copies_out = 0
        self.num_sent = 0
        self.num_fetched = 0

    @property
    def taken_bytes(self) -> int:
        """What is allocated, less what was given back."""
        return sum(len(block) - 64 for block in self.blocks.values())

    def allocate(self, num_bytes: int) -> int:
        """The address of zeros."""
        block = ctypes.create_string_buffer(num_bytes + 64)
        address = (ctypes.addressof(block) + 63) // 64 * 64
        self.blocks[address] = block
        return address

    def free(self, address: int) -> None:
        """Gives memory back."""
        del self.blocks[address]

    def allocate_pinned(self, num_bytes: int) -> int:
        """The address of host memory, not counted."""
        block = ctypes.create_string_buffer(num_bytes)
        self.pinned[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free_pinned(self, address: int) -> None:
        """Gives it back."""
        del self.pinned[address]

    def send(self, address: int, source: int, num_bytes: int) -> None:
        """Copies what a step reads."""
        self.num_sent += 1
        ctypes.memmove(address, source, num_bytes)

    def fetch(self, target: int, address: int, num_bytes: int) -> None:
        """Copies what a step wrote."""
        self.num_fetched += 1
        ctypes.memmove(target, address, num_bytes)

    def copy_in(self, address: int, values: Array) -> None:
        """Copies a host array to an address."""
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def copy_out(self, values: Array, address: int) -> None:
        """Copies from an address into a host array."""
        self.num_copies_out += 1
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def copy_blocks(self, target: Blocks, source: Blocks, count: int, block_bytes: int) -> None:
        """Copies blocks at equal distances."""
        self.num_copies_out += not isinstance(target.memory, int)
        to, start = (
            side.memory if isinstance(side.memory, int) else side.memory.ctypes.data
            for side in (target, source)
        )
        for number in range(count):
            ctypes.memmove(
                to + number * target.pitch_bytes, start + number * source.pitch_bytes, block_bytes
            )
