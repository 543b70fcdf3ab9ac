from __future__ import annotations

import pytest

from twostroke.backends import Device, ProbeResult
from twostroke.backends.devices import find_device
from twostroke.errors import BackendError

FOUND = ProbeResult(
    (
        Device(0, "NVIDIA RTX 4090", "gpu"),
        Device(1, "NVIDIA RTX 4090 Laptop", "gpu"),
        Device(4, "Radeon  780M", "gpu"),
    )
)


@pytest.mark.parametrize(
    ("wanted", "index"),
    [(0, 0), (4, 4), ("radeon 780m", 4), ("Laptop", 1), ("nvidia rtx 4090", 0)],
)
def test_an_index_or_a_part_of_a_name_finds_it(wanted: int | str, index: int):
    assert find_device("gpu", FOUND, wanted).index == index


@pytest.mark.parametrize("wanted", [2, "4", "arc"])
def test_none_lists_the_devices(wanted: int | str):
    found = ProbeResult((Device(0, "Radeon", "gpu"),))
    with pytest.raises(BackendError, match=rf"'gpu' has no device {wanted!r}\..*0 \(Radeon\)"):
        find_device("gpu", found, wanted)


def test_several_ask_for_an_index():
    with pytest.raises(BackendError, match=r"more than one device called 'RTX'.*index, 0 or 1"):
        find_device("gpu", FOUND, "RTX")
