from __future__ import annotations

from typing import Any

import pytest

from twostroke_backends.nvml import NvmlMemory, ask, memory_of

UUID = "000102030405060708090a0b0c0d0e0f"
BUS_ID = "0000:3B:00.0"
DEVICE, INSTANCE = 11, 12
NOT_FOUND = 6


class FakeNvml:
    """`libnvidia-ml`: one device of 80 GiB, perhaps divided; counts what is not given back."""

    def __init__(self, *, is_divided: bool = False, instances: tuple[str, ...] = ()) -> None:
        self.is_divided, self.instances = is_divided, instances
        self.num_open = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802 - the library's own names
        self.num_open += 1
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.num_open -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: Any, handle: Any) -> int:  # noqa: N802
        if name.value.decode() not in self.instances:
            return NOT_FOUND
        handle._obj.value = INSTANCE
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: Any, handle: Any) -> int:  # noqa: N802
        if address.value != BUS_ID.encode():
            return NOT_FOUND
        handle._obj.value = DEVICE
        return 0

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        current._obj.value = int(self.is_divided)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        share = {DEVICE: 1, INSTANCE: 7}[handle.value]
        memory._obj.total, memory._obj.free = (80 << 30) // share, (70 << 30) // share
        return 0


def test_a_whole_device_is_found_by_its_address():
    nvml = FakeNvml()
    found = ask(nvml, BUS_ID, UUID)
    assert found == NvmlMemory(80 << 30, 70 << 30)
    assert found.source == "NVML"
    assert nvml.num_open == 0


def test_an_instance_counts_only_what_it_was_given():
    instances = ("MIG-00010203-0405-0607-0809-0a0b0c0d0e0f",)
    found = ask(FakeNvml(is_divided=True, instances=instances), BUS_ID, UUID)
    assert found == NvmlMemory((80 << 30) // 7, (70 << 30) // 7, is_instance=True)
    assert found.source == "NVML, of the MIG instance"


@pytest.mark.parametrize("uuid", ["", UUID])
def test_of_an_instance_that_it_does_not_know_nvml_tells_nothing(uuid):
    nvml = FakeNvml(is_divided=True)
    assert ask(nvml, BUS_ID, uuid) is None
    assert nvml.num_open == 0


def test_an_unknown_device_or_no_library_is_nothing():
    assert ask(FakeNvml(), "0000:00:00.0", "") is None
    assert memory_of(BUS_ID, UUID, "libnowhere.so.1") is None
