"""Checks that need no bundle: the probe, options, and memory."""

from __future__ import annotations

import numpy as np

from twostroke.backends.capabilities import ReachesFront
from twostroke.backends.protocol import (
    API_VERSION,
    Array,
    Backend,
    Device,
    ProbeResult,
    ReshapableBuffer,
    storage_dtype,
)
from twostroke.errors import BackendError
from twostroke.testing.kit.checking import Check, CheckFailedError, CheckSkippedError, require
from twostroke.testing.kit.subject import Subject

_UNKNOWN = "no_such_option"


def _probe(subject: Subject) -> dict[str, float]:
    try:
        found = subject.spec.probe()
    except Exception as error:
        raise CheckFailedError(f"the probe raised {type(error).__name__}: {error}") from error
    require(isinstance(found, ProbeResult), f"the probe answered {found!r:.80}")
    require(found.devices or found.reason.strip(), "no device, and no reason why")
    indices = [device.index for device in found.devices]
    require(all(isinstance(device, Device) for device in found.devices), "not all are a Device")
    require(len(set(indices)) == len(indices), f"two devices have one index: {indices}")
    return {"devices": len(indices)}


def _spec(subject: Subject) -> dict[str, float]:
    spec = subject.spec
    require(
        spec.api_version == API_VERSION,
        f"it speaks API version {spec.api_version}, this twostroke {API_VERSION}",
    )
    require(spec.name and spec.summary, "the spec lacks a name or a summary")
    return {"API version": spec.api_version}


def _devices(subject: Subject) -> dict[str, float]:
    _ = subject.device
    for device in subject.found.devices:
        try:
            backend = subject.spec.open(device, subject.options)
        except Exception as error:
            raise CheckFailedError(
                f"the probe found device {device.index} ({device.name}), and it does not open: "
                f"{type(error).__name__}: {error}"
            ) from error
        try:
            _require_backend(subject, backend)
            index = backend.device.index
            require(index == device.index, f"asked for device {device.index}, it opened {index}")
        finally:
            backend.close()
    return {"opened": len(subject.found.devices)}


def _require_backend(subject: Subject, backend: Backend) -> None:
    """Raises CheckFailedError naming what the object lacks."""
    members = [name for name in dir(Backend) if not name.startswith("_")]
    lacking = [name for name in members if not hasattr(backend, name)]
    require(not lacking, f"the backend lacks {', '.join(lacking)}")
    require(
        backend.name == subject.spec.name,
        f"the backend calls itself {backend.name!r}, its spec {subject.spec.name!r}",
    )


def _options(subject: Subject) -> dict[str, float]:
    device = subject.device
    try:
        backend = subject.spec.open(device, {**subject.options, _UNKNOWN: 1})
    except BackendError as error:
        message = str(error)
    except Exception as error:
        raise CheckFailedError(
            f"an unknown option is refused with {type(error).__name__}, not BackendError: {error}"
        ) from error
    else:
        backend.close()
        raise CheckFailedError(f"the unknown option {_UNKNOWN!r} was taken without a word")
    require(_UNKNOWN in message, f"the message does not name the option: {message}")
    for allowed in subject.options:
        require(allowed in message, f"the message does not name the allowed {allowed}: {message}")
    return {}


def _memory(subject: Subject) -> dict[str, float]:
    kinds = (((3, 2, 8, 4), "float32"), ((2, 5), "int64"), ((2,), "int32"), ((), "int32"))
    num_bytes = 0
    for shape, dtype in kinds:
        for on_host in (False, True):
            what = f"a buffer of {dtype}{list(shape)}{' on the host' if on_host else ''}"
            buffer = subject.backend.allocate(shape, dtype, on_host=on_host)
            told = (tuple(buffer.shape), buffer.dtype)
            require(told == (shape, dtype), f"{what} says that it is {told[1]}{list(told[0])}")
            require(not np.any(buffer.read()), f"{what} is not all zeros at first")
            values = np.asarray(_values(shape) * (1 / 3 if dtype == "float32" else 1), dtype)
            buffer.write(values)
            found = np.asarray(buffer.read())
            require(
                found.dtype == storage_dtype(dtype), f"{what} is read as {found.dtype}, not {dtype}"
            )
            require(np.array_equal(found, values), f"{what}: what was written does not come back")
            num_bytes += values.nbytes
    return {"bytes": num_bytes}


def _values(shape: tuple[int, ...]) -> Array:
    """1, 2, 3 … as floats in a shape; their thirds are no half-precision numbers."""
    return np.arange(1.0, 1 + int(np.prod(shape))).reshape(shape)


def _row_views(subject: Subject) -> dict[str, float]:
    if not subject.backend.has_row_views:
        raise CheckSkippedError("the backend says that it has no views of rows")
    whole = subject.backend.allocate((4, 2, 8, 4), "float32")
    part = whole.rows(1, 2)
    require(tuple(part.shape) == (2, 2, 8, 4), f"rows 1 and 2 have the shape {list(part.shape)}")
    part.write(np.full((2, 2, 8, 4), 5.0, np.float32))
    sums = np.asarray(whole.read()).sum(axis=(1, 2, 3)).tolist()
    require(sums == [0.0, 320.0, 320.0, 0.0], "a view of rows 1 and 2 wrote elsewhere")
    whole.write(np.full((4, 2, 8, 4), 7.0, np.float32))
    require((np.asarray(part.read()) == 7.0).all(), "a view does not see the whole's memory")
    return {}


def _shape_views(subject: Subject) -> dict[str, float]:
    whole = subject.backend.allocate((1, 2, 8, 4), "float32")
    if not isinstance(whole, ReshapableBuffer):
        raise CheckSkippedError("the backend's buffers cannot be seen in other shapes")
    part = whole.reshaped((1, 2, 3, 4))
    values: Array = np.arange(1, 25, dtype=np.float32).reshape(1, 2, 3, 4)
    part.write(values)
    found = np.asarray(whole.read()).reshape(-1)
    require(
        np.array_equal(found[:24], values.reshape(-1)), "a view in another shape wrote elsewhere"
    )
    require(not found[24:].any(), "a view in another shape wrote beyond its end")
    require(np.array_equal(part.read(), values), "a view does not read what was written to it")
    return {}


def _fronts(subject: Subject) -> dict[str, float]:
    shape, num_positions = (2, 3, 8, 4), 5
    whole = subject.backend.allocate(shape, "float32")
    if not isinstance(whole, ReachesFront):
        raise CheckSkippedError("the backend's buffers are read and written as a whole")
    values = _values(shape).astype(np.float32)
    front = values[:, :, :num_positions]
    whole.write(values)
    require(np.array_equal(whole.read_front(num_positions), front), "it reads another front")
    whole.write_front(-front)
    expected = np.concatenate([-front, values[:, :, num_positions:]], axis=2)
    require(np.array_equal(whole.read(), expected), "a front was written elsewhere")
    longer = subject.backend.allocate((2, 3, 13, 4), "float32")
    if isinstance(longer, ReachesFront) and longer.copy_front(whole, num_positions):
        found = np.asarray(longer.read())
        require(np.array_equal(found[:, :, :num_positions], -front), "it copies another front")
        require(not found[:, :, num_positions:].any(), "a front was copied beyond its end")
    return {}


DEVICE_CHECKS = (
    Check("probe", "answers devices or a reason, and never raises", _probe),
    Check("spec", "names itself and speaks this API version", _spec),
    Check("devices", "each device that the probe found opens", _devices),
    Check("options", "an unknown option is refused by name, with the allowed ones", _options),
    Check("memory", "buffers start as zeros and keep what is written", _memory),
    Check("row-views", "a view of rows shares the memory of the whole", _row_views),
    Check("shape-views", "so does a view in another shape", _shape_views),
    Check("fronts", "the first positions of a buffer are reached without the others", _fronts),
)
