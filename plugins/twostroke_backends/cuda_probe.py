"""Which NVIDIA GPUs can be used here, or the one thing that is missing."""

from __future__ import annotations

from twostroke.backends import Device, ProbeResult
from twostroke.errors import TwostrokeError
from twostroke_backends import cuda_libraries
from twostroke_backends.cuda_driver import CudaDeviceFacts, CudaDriver, load_library
from twostroke_backends.cuda_precision import floats_of, too_old
from twostroke_backends.nvml import memory_of


def probe() -> ProbeResult:
    """The GPUs, or the one library or device that is missing. Makes no context on a device."""
    try:
        driver = CudaDriver(load_library())
        fault = cuda_libraries.missing_provider() or _old_driver(driver)
        fault = fault or cuda_libraries.missing_library()
        if fault is not None:
            return ProbeResult(reason=fault)
        found = driver.devices()
        built = cuda_libraries.built_for()
        faults = [too_old(f.name, f.compute_capability, built) for f in found]
        devices = tuple(
            _device(facts) for facts, fault in zip(found, faults, strict=True) if fault is None
        )
    except TwostrokeError as error:
        return ProbeResult(reason=str(error))
    except Exception as error:  # a probe never raises, whatever a driver does
        return ProbeResult(reason=f"asking the NVIDIA driver failed: {error}")
    if not devices and found:
        return ProbeResult(reason="; ".join(filter(None, faults)) + ".")
    if not devices:
        return ProbeResult(
            reason="the NVIDIA driver finds no device; CUDA_VISIBLE_DEVICES must not hide it."
        )
    return ProbeResult(devices)


def _old_driver(driver: CudaDriver) -> str | None:
    built, served = cuda_libraries.built_for(), driver.cuda_version()
    if built is None or served[0] >= built[0]:
        return None
    return (
        f"the NVIDIA driver serves CUDA {served[0]}.{served[1]}, but ONNX Runtime was built for "
        f"CUDA {built[0]}.{built[1]}: install a newer NVIDIA driver."
    )


def _device(facts: CudaDeviceFacts) -> Device:
    details = {
        "compute_capability": ".".join(map(str, facts.compute_capability)),
        "pci_bus_id": facts.pci_bus_id,
        "uuid": facts.uuid,
    }
    memory = memory_of(facts.pci_bus_id, facts.uuid)
    if memory is not None:
        details["free_bytes"] = str(memory.free_bytes)
    return Device(
        index=facts.index,
        name=facts.name,
        kind="gpu",
        memory_bytes=facts.total_bytes if memory is None else memory.total_bytes,
        bandwidth_bytes_per_s=facts.bandwidth_bytes_per_s,
        dtypes=floats_of(facts.compute_capability),
        details=details,
    )
