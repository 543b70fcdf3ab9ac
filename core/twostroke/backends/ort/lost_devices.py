"""Which errors of a run mean that the device is lost.

ONNX Runtime's errors are texts. Those of CUDA carry the runtime's error code; some codes are
*sticky*: they leave the process's context in a state in which every later call fails (CUDA Runtime
API, "cudaError": "the process must be terminated and relaunched"). DirectML's carry an HRESULT of
DXGI ("DXGI_ERROR": removed, hung, reset, internal error of the driver). Dawn, under WebGPU, says
that the device is lost.
"""

from __future__ import annotations

import re

from twostroke.backends.ort.library import first_line
from twostroke.errors import DeviceLostError, EngineError

_STICKY_CUDA = (
    46,  # devices unavailable
    214,  # uncorrectable ECC
    220,  # uncorrectable NVLink
    700,  # illegal address
    702,  # launch timeout
    710,  # assert
    714,  # hardware stack
    715,  # illegal instruction
    716,  # misaligned address
    717,  # invalid address space
    718,  # invalid program counter
    719,  # launch failure
    721,  # exited thread block
)
_LOST = re.compile(
    rf"CUDA failure (?:{'|'.join(map(str, _STICKY_CUDA))})\b"
    r"|cudaError(?:DevicesUnavailable|ECCUncorrectable|IllegalAddress|LaunchTimeout|LaunchFailure"
    r"|Assert|HardwareStackError|IllegalInstruction|MisalignedAddress)\b"
    r"|887A00(?:05|06|07|20)"
    r"|device (?:is|was) lost|lost device|device_?removed",
    re.IGNORECASE,
)


def failed_run(graph_name: str, error: Exception) -> EngineError:
    """What a run ends with: DeviceLostError where no other run can go well on this device."""
    kind = DeviceLostError if _LOST.search(str(error)) else EngineError
    return kind(f"{graph_name} failed: {first_line(error)}")
