from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from twostroke.backends.ort import DeviceStaged, allocate_on_device
from twostroke.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from twostroke_backends.cuda_copies import Memcpy2D
from twostroke_backends.cuda_driver import CudaDriver, load_library

NO_DEVICE, OUT_OF_MEMORY, INVALID_CONTEXT = 100, 2, 201
HOST_MEMORY, DEVICE_MEMORY = 1, 2
NON_BLOCKING = 1


def put(reference: Any, value: Any) -> int:
    """Writes through what ctypes.byref gave, as the driver would."""
    reference._obj.value = value
    return 0


class FakeLibrary:
    """`libcuda.so.1` over host memory: one device, `free_bytes` of memory, strict about context."""

    def __init__(self, *, init: int = 0, version: int = 13000, free_bytes: int = 1 << 20) -> None:
        self.init, self.version, self.free_bytes = init, version, free_bytes
        self.blocks: dict[int, Any] = {}
        self.current: int | None = None
        self.num_syncs = self.num_contexts = self.num_streams = 0
        self.pinned: dict[int, Any] = {}
        self.queued: list[tuple[int, int, int]] = []

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's own names
        return self.init

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        return put(version, self.version)

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        return put(count, 1)

    def cuDeviceGetName(self, name: Any, size: Any, device: Any) -> int:  # noqa: N802
        assert size.value == len(name)
        name.value = b"A GPU"
        return 0

    def cuDeviceTotalMem_v2(self, total: Any, device: Any) -> int:  # noqa: N802
        return put(total, 24 << 30)

    def cuDeviceGetPCIBusId(self, bus_id: Any, size: Any, device: Any) -> int:  # noqa: N802
        bus_id.value = b"0000:3B:00.0"
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: Any, device: Any) -> int:  # noqa: N802
        known = {36: 10_501_000, 37: 384, 75: 8, 76: 9}
        return put(value, known[number.value])

    def cuGetErrorString(self, code: Any, text: Any) -> int:  # noqa: N802
        words = {NO_DEVICE: b"no CUDA-capable device is detected", INVALID_CONTEXT: b"no context"}
        return put(text, words[code.value]) if code.value in words else 1

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        self.num_contexts += 1
        return put(context, 4711)

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:  # noqa: N802
        self.num_contexts -= 1
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        self.current = context.value
        return 0

    def cuCtxSynchronize(self) -> int:  # noqa: N802
        self.num_syncs += 1
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        put(total, 24 << 30)
        return put(free, self.free_bytes)

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:  # noqa: N802
        if self.current is None:
            return INVALID_CONTEXT
        if size.value > self.free_bytes:
            return OUT_OF_MEMORY
        block = ctypes.create_string_buffer(b"\xff" * size.value, size.value)
        self.blocks[ctypes.addressof(block)] = block
        return put(address, ctypes.addressof(block))

    def cuMemFree_v2(self, address: Any) -> int:  # noqa: N802
        return 0 if self.blocks.pop(address.value, None) is not None else 1

    def cuMemsetD8_v2(self, address: Any, value: Any, size: Any) -> int:  # noqa: N802
        ctypes.memset(address.value, value.value, size.value)
        return 0

    def cuMemcpyHtoD_v2(self, target: Any, source: Any, size: Any) -> int:  # noqa: N802
        if self.current is None:
            return INVALID_CONTEXT
        ctypes.memmove(target.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, target: Any, source: Any, size: Any) -> int:  # noqa: N802
        return self.cuMemcpyHtoD_v2(target, source, size)

    def cuStreamCreate(self, stream: Any, flags: Any) -> int:  # noqa: N802
        assert flags.value == NON_BLOCKING
        self.num_streams += 1
        return INVALID_CONTEXT if self.current is None else put(stream, 815)

    def cuStreamDestroy_v2(self, stream: Any) -> int:  # noqa: N802
        self.num_streams -= stream.value == 815
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:  # noqa: N802
        assert stream.value == 815
        for copy in self.queued:
            ctypes.memmove(*copy)
        self.queued.clear()
        return 0

    def cuMemHostAlloc(self, address: Any, size: Any, flags: Any) -> int:  # noqa: N802
        if size.value > 1 << 30:
            return OUT_OF_MEMORY
        block = ctypes.create_string_buffer(b"\xee" * size.value, size.value)
        self.pinned[ctypes.addressof(block)] = block
        return put(address, ctypes.addressof(block))

    def cuMemFreeHost(self, address: Any) -> int:  # noqa: N802
        return 0 if self.pinned.pop(address.value, None) is not None else 1

    def cuMemcpyHtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:  # noqa: N802
        assert stream.value == 815
        assert any(a <= source.value < a + len(b) for a, b in self.pinned.items())
        self.queued.append((target.value, source.value, size.value))
        return 0

    def cuMemcpyDtoHAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:  # noqa: N802
        assert any(a <= target.value < a + len(b) for a, b in self.pinned.items())
        self.queued.append((target.value, source.value, size.value))
        return 0

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:  # noqa: N802
        uuid._obj[:] = range(16)
        return 0

    def cuMemcpy2DUnaligned_v2(self, reference: Any) -> int:  # noqa: N802
        if self.current is None:
            return INVALID_CONTEXT
        copy = reference._obj
        source = self.side(copy.src_memory_type, copy.src_host, copy.src_device)
        target = self.side(copy.dst_memory_type, copy.dst_host, copy.dst_device)
        for number in range(copy.height):
            ctypes.memmove(
                target + number * copy.dst_pitch,
                source + number * copy.src_pitch,
                copy.width_bytes,
            )
        return 0

    def side(self, memory_type: int, host: int | None, device: int) -> int:
        """The address, which must be given for the kind of memory that is named."""
        on_device = memory_type == DEVICE_MEMORY
        assert memory_type in (HOST_MEMORY, DEVICE_MEMORY)
        assert (host or 0, device)[not on_device] == 0
        assert not on_device or any(a <= device < a + len(b) for a, b in self.blocks.items())
        return device if on_device else int(host or 0)


def test_the_devices_facts():
    driver = CudaDriver(FakeLibrary())
    (facts,) = driver.devices()
    assert (facts.index, facts.name, facts.total_bytes) == (0, "A GPU", 24 << 30)
    assert facts.compute_capability == (8, 9)
    assert facts.pci_bus_id == "0000:3B:00.0"
    assert facts.uuid == "000102030405060708090a0b0c0d0e0f"
    assert facts.bandwidth_bytes_per_s == pytest.approx(1008e9, rel=1e-3)  # an RTX 4090's
    assert driver.cuda_version() == (13, 0)


def test_a_driver_that_does_not_start_says_why():
    with pytest.raises(BackendUnavailableError, match="CUDA error 100: no CUDA-capable device"):
        CudaDriver(FakeLibrary(init=NO_DEVICE))
    with pytest.raises(BackendUnavailableError, match="CUDA error 999: unknown error"):
        CudaDriver(FakeLibrary(init=999))


def test_a_missing_driver_is_named():
    with pytest.raises(BackendUnavailableError, match=r"libnowhere\.so\.1.*install the NVIDIA"):
        load_library("libnowhere.so.1")


def test_memory_is_zeroed_copied_and_given_back():
    library = FakeLibrary()
    memory = CudaDriver(library).memory(0)
    buffer = allocate_on_device(memory, (2, 3), "float16")
    assert memory.ort_device == ("cuda", 0)
    assert not buffer.read().any()
    syncs = library.num_syncs
    buffer.rows(1, 1).write(np.array([[1, 2, 3]], np.float16))
    assert library.num_syncs == syncs + 1  # the bytes are there before a session may run
    assert buffer.read().tolist() == [[0, 0, 0], [1, 2, 3]]
    del buffer
    gc.collect()
    assert not library.blocks
    memory.release()
    assert library.num_contexts == 0


def test_tokens_are_copied_without_the_room_behind_them():
    library = FakeLibrary()
    memory = CudaDriver(library).memory(0)
    small, large = (allocate_on_device(memory, (2, 3, n, 2), "float16") for n in (4, 16))
    values = np.arange(2 * 3 * 3 * 2, dtype=np.float16).reshape(2, 3, 3, 2)
    library.current, syncs = None, library.num_syncs
    small.write_front(values)
    assert library.num_syncs == syncs + 1
    assert np.array_equal(small.read_front(3), values)
    assert not small.read()[:, :, 3].any()
    assert large.copy_front(small, 2)
    assert np.array_equal(large.read()[:, :, :2], values[:, :, :2])
    assert not large.read()[:, :, 2:].any()


def test_the_drivers_description_of_a_copy_is_as_large_as_it_expects():
    assert ctypes.sizeof(Memcpy2D) == 128  # of a 64-bit system


def test_each_thread_gets_the_context():
    library = FakeLibrary()
    buffer = allocate_on_device(CudaDriver(library).memory(0), (2,), "int32")
    library.current = None  # as in a thread that has never called the driver
    buffer.write(np.array([1, 2], np.int32))
    assert library.current == 4711


def test_too_much_memory_is_told_in_bytes():
    memory = CudaDriver(FakeLibrary(free_bytes=1000)).memory(0)
    with pytest.raises(OutOfMemoryError, match=r"4000 bytes on CUDA device 0 .* 1000 are free"):
        allocate_on_device(memory, (1000,), "float32")


def test_other_faults_name_the_function():
    library = FakeLibrary()
    memory = CudaDriver(library).memory(0)
    library.cuMemsetD8_v2 = lambda *arguments: INVALID_CONTEXT
    with pytest.raises(BackendError, match="cuMemsetD8_v2 failed with CUDA error 201: no context"):
        memory.allocate(16)


def test_small_tensors_cross_in_one_copy_that_the_sessions_stream_orders():
    library = FakeLibrary()
    memory = CudaDriver(library).memory(0)
    tensors = {
        "input_ids": ((2, 1), "int64"),
        "seqlens_k": ((2,), "int32"),
        "total_sequence_length": ((), "int32"),
    }
    staged = DeviceStaged(memory, tensors, on_host=["total_sequence_length"])
    assert not any(values.any() for values in staged.values.values())
    staged.values["input_ids"][...] = [[5], [6]]
    staged.values["seqlens_k"][...] = [7, 8]
    staged.values["total_sequence_length"][...] = 9
    library.current = None  # another thread
    staged.send()
    assert len(library.queued) == 1  # and nobody waits
    library.cuStreamSynchronize(ctypes.c_uint64(memory.stream))
    assert staged.buffers["input_ids"].read().tolist() == [[5], [6]]
    assert staged.buffers["seqlens_k"].read().tolist() == [7, 8]
    assert staged.buffers["total_sequence_length"].read() == 9
    staged.buffers["seqlens_k"].write(np.array([1, 2], np.int32))
    staged.fetch()
    assert staged.values["seqlens_k"].tolist() == [1, 2]
    assert memory.stream == 815
    assert library.num_streams == 1
    kept = staged.values["input_ids"]
    del staged
    gc.collect()
    assert kept.tolist() == [[5], [6]]  # arrays keep the pinned memory
    del kept
    gc.collect()
    assert not library.pinned
    assert not library.blocks
    memory.release()
    assert (library.num_streams, library.num_contexts) == (0, 0)


def test_pinned_memory_that_is_refused_is_told():
    memory = CudaDriver(FakeLibrary()).memory(0)
    with pytest.raises(OutOfMemoryError, match=r"pinned host memory.*ulimit -l"):
        memory.allocate_pinned(2 << 30)
