"""The part of the conformance kit that needs no bundle: probe, options and memory.

`twostroke.testing.conformance` builds on it; plugin authors inherit from there.
"""

# ruff: noqa: D102 - the name of a test says what it proves

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from twostroke.backends.protocol import API_VERSION, Backend, BackendSpec, ReshapableBuffer
from twostroke.errors import BackendError


class DeviceConformance:
    """What a backend must do before it has seen a graph. Override the fixture `spec`."""

    options: Mapping[str, Any] = {}

    @pytest.fixture
    def spec(self) -> BackendSpec:
        """The backend under test."""
        pytest.fail("override the fixture `spec` to answer your BackendSpec")

    @pytest.fixture
    def backend(self, spec: BackendSpec) -> Iterator[Backend]:
        """The backend, open on its first device; skips where there is none."""
        found = spec.probe()
        if not found.is_available:
            pytest.skip(found.reason)
        backend = spec.open(found.devices[0], self.options)
        yield backend
        backend.close()

    def test_the_probe_answers_devices_or_a_reason(self, spec: BackendSpec) -> None:
        found = spec.probe()
        assert found.devices or found.reason.strip(), "no device, and no reason why"
        indices = [device.index for device in found.devices]
        assert len(set(indices)) == len(indices), f"two devices have one index: {indices}"

    def test_the_spec_speaks_this_api_version(self, spec: BackendSpec) -> None:
        assert spec.api_version == API_VERSION
        assert spec.name
        assert spec.summary

    def test_an_unknown_option_is_refused_by_name(self, spec: BackendSpec) -> None:
        found = spec.probe()
        if not found.is_available:
            pytest.skip(found.reason)
        with pytest.raises(BackendError) as caught:
            spec.open(found.devices[0], {**self.options, "no_such_option": 1}).close()
        message = str(caught.value)
        assert "no_such_option" in message, f"the message does not name the option: {message}"
        for allowed in self.options:
            assert allowed in message, f"the message does not name the allowed {allowed}: {message}"

    def test_views_in_other_shapes_share_memory(self, backend: Backend) -> None:
        whole = backend.allocate((1, 2, 8, 4), "float32")
        if not isinstance(whole, ReshapableBuffer):
            pytest.skip("the backend's buffers cannot be seen in other shapes")
        part = whole.reshaped((1, 2, 3, 4))
        values = np.arange(1, 25, dtype=np.float32).reshape(1, 2, 3, 4)
        part.write(values)
        found = np.asarray(whole.read()).reshape(-1)
        assert np.array_equal(found[:24], values.reshape(-1)), (
            "a view in another shape wrote elsewhere"
        )
        assert not found[24:].any(), "a view in another shape wrote beyond its end"
        assert np.array_equal(part.read(), values)

    def test_the_backend_is_what_the_engine_asks_for(self, backend: Backend) -> None:
        assert isinstance(backend, Backend)

    @pytest.mark.parametrize("on_host", [False, True])
    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [((3, 2, 8, 4), "float32"), ((2, 5), "int64"), ((2,), "int32"), ((), "int32")],
    )
    def test_buffers_start_as_zeros_and_keep_what_is_written(
        self, backend: Backend, shape: tuple[int, ...], dtype: str, on_host: bool
    ) -> None:
        buffer = backend.allocate(shape, dtype, on_host=on_host)
        assert (tuple(buffer.shape), buffer.dtype) == (shape, dtype)
        assert not np.any(buffer.read()), "a fresh buffer is not all zeros"
        values = np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)
        buffer.write(values)
        assert np.array_equal(buffer.read(), values), "what was written does not come back"
        assert np.asarray(buffer.read()).dtype == np.dtype(dtype)

    def test_views_of_rows_share_memory(self, backend: Backend) -> None:
        if not backend.has_row_views:
            pytest.skip("the backend says that it has no views of rows")
        whole = backend.allocate((4, 2, 8, 4), "float32")
        part = whole.rows(1, 2)
        assert tuple(part.shape) == (2, 2, 8, 4)
        part.write(np.full((2, 2, 8, 4), 5.0, np.float32))
        sums = np.asarray(whole.read()).sum(axis=(1, 2, 3)).tolist()
        assert sums == [0.0, 320.0, 320.0, 0.0], "a view of rows 1 and 2 wrote elsewhere"
        whole.write(np.full((4, 2, 8, 4), 7.0, np.float32))
        assert (np.asarray(part.read()) == 7.0).all(), "a view does not see the whole's memory"
