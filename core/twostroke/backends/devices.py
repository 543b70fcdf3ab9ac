"""Which of a backend's devices is meant: by its index, or by a part of its name.

Indices change when a card is added or a driver enumerates anew; names stay.
"""

from __future__ import annotations

from twostroke.backends.protocol import Device, ProbeResult
from twostroke.errors import BackendError


def find_device(backend: str, found: ProbeResult, wanted: int | str) -> Device:
    """The device with this index, or the one whose name is `wanted` or has it as a part.

    Case does not matter in names. A whole name comes before a part of a longer one.

    Raises:
        BackendError: none, or several; lists the devices.
    """
    matches = [device for device in found.devices if _is_meant(device, wanted)]
    if isinstance(wanted, str):
        whole = [device for device in matches if _folded(device.name) == _folded(wanted)]
        matches = whole or matches
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(f"{device.index} ({device.name})" for device in found.devices)
    if not matches:
        raise BackendError(
            f"The backend {backend!r} has no device {wanted!r}. Its devices: {listed}."
        )
    indices = " or ".join(str(device.index) for device in matches)
    raise BackendError(
        f"The backend {backend!r} has more than one device called {wanted!r}: name its index, "
        f"{indices}. Its devices: {listed}."
    )


def _is_meant(device: Device, wanted: int | str) -> bool:
    if isinstance(wanted, int):
        return device.index == wanted
    return _folded(wanted) in _folded(device.name)


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())
