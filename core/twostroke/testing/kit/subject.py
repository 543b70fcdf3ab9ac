"""The backend under test: its device, and runners over the kit's bundles, opened when asked for."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from twostroke.backends.capabilities import CHOSEN_BY_OPTIONS
from twostroke.backends.protocol import Backend, BackendSpec, Device, ProbeResult
from twostroke.bundle import Bundle, open_bundle
from twostroke.engine.build import open_runner
from twostroke.engine.kv_extent import Extent
from twostroke.engine.runner import Runner
from twostroke.errors import TwostrokeError
from twostroke.testing.kit.bundles import BundleMaker, KitBundle, bundle_maker
from twostroke.testing.kit.checking import (
    QUANTISED_TOLERANCE,
    TOLERANCES,
    CheckFailedError,
    CheckSkippedError,
)
from twostroke.testing.kit.setups import Setup, open_setups, setup_name
from twostroke.types import Stroke

NUM_ROWS = 4
CONTEXT_TOKENS = 64


class Subject:
    """One backend with its options. Owns what the checks opened; close it.

    `make_bundle` writes the bundle to test on; None: the kit's own (see `kit.bundles`), in
    `precision` fp32 or fp16. `tolerance` None: what `TOLERANCES` says. `partner` is the backend to
    hand KV caches to and from, and to take logits from where the bundle has no reference of its
    own; usually the CPU's.
    """

    def __init__(
        self,
        spec: BackendSpec,
        options: Mapping[str, Any] | None = None,
        *,
        device_index: int = 0,
        tolerance: float | None = None,
        precision: str = "fp32",
        make_bundle: BundleMaker | None = None,
        partner: BackendSpec | None = None,
    ) -> None:
        self.spec = spec
        self.options = dict(options or {})
        self.device_index = device_index
        self._tolerance = tolerance
        self._partner = partner
        self._make_bundle = make_bundle or bundle_maker(spec, precision)
        self._does_not_open = False
        self._owned = ExitStack()

    @functools.cached_property
    def found(self) -> ProbeResult:
        """What the probe answers, asked once; raises where it is broken."""
        found = self.spec.probe()
        if not isinstance(found, ProbeResult):
            raise TypeError(f"the probe answered {found!r:.80}")
        return found

    @property
    def absence(self) -> str:
        """Why there is no device; empty where there is one, or where that cannot be known."""
        try:
            found = self.found
        except Exception:  # the check of the probe says so
            return ""
        if not found.is_available:
            return found.reason or "no reason given"
        if not self.options and CHOSEN_BY_OPTIONS in found.devices[0].capabilities:
            return "its device is chosen by its options, and there are none."
        return ""

    @property
    def device(self) -> Device:
        """The device under test.

        Raises:
            CheckSkippedError: there is none; the reason is the probe's.
        """
        try:
            found = self.found
        except Exception as error:
            raise CheckSkippedError("the probe failed") from error
        if self.absence:
            raise CheckSkippedError(self.absence)
        for device in found.devices:
            if device.index == self.device_index:
                return device
        raise CheckSkippedError(f"there is no device {self.device_index}")

    @property
    def device_words(self) -> str:
        """The device's name, as the open backend says it; empty where there is none."""
        try:
            found = self.device
        except CheckSkippedError:
            return ""
        backend = self.__dict__.get("backend")  # not opened for this
        return found.name if backend is None else str(backend.device.name)

    @functools.cached_property
    def backend(self) -> Backend:
        """The backend, open as long as the subject is.

        Raises:
            CheckFailedError: it does not open. CheckSkippedError: nor did it before.
        """
        device = self.device
        if self._does_not_open:
            raise CheckSkippedError("the device does not open, as was said before")
        try:
            backend = self.spec.open(device, self.options)
        except Exception as error:  # a stranger's backend may raise anything
            self._does_not_open = True
            raise CheckFailedError(
                f"the device does not open: {type(error).__name__}: {error}"
            ) from error
        self._owned.callback(backend.close)
        return backend

    @functools.cached_property
    def bundle(self) -> KitBundle:
        """The bundle to test on, written when it is first asked for."""
        folder = tempfile.TemporaryDirectory(
            prefix="twostroke-conformance-",
            ignore_cleanup_errors=True,  # a runtime may still map the weights
        )
        self._owned.enter_context(folder)
        return self._make_bundle(Path(folder.name))

    @functools.cached_property
    def opened_bundle(self) -> Bundle:
        """The bundle, checked."""
        return open_bundle(self.bundle.root)

    @functools.cached_property
    def tolerance(self) -> float:
        """How far logits may differ, as a share of the largest."""
        if self._tolerance is not None:
            return self._tolerance
        return TOLERANCES.get(self.opened_bundle.manifest.precision, QUANTISED_TOLERANCE)

    @property
    def partner(self) -> BackendSpec | None:
        """Another backend that reads the bundle; None where there is none."""
        return self._partner if self.bundle.is_portable else None

    @property
    def preferred(self) -> str:
        """The name of the set-up that the spec wants."""
        return setup_name(self.spec.dialect)

    @functools.cached_property
    def _attempts(self) -> dict[str, Setup | Exception]:
        """The set-ups of the bundle; see `open_setups`."""
        backend = self.backend

        def open_one(dialects: Mapping[Stroke, str]) -> Runner:
            runner = self.open_runner(backend, backend, dialects)
            self._owned.callback(runner.close)
            return runner

        return open_setups(open_one, self.spec.dialect, self.opened_bundle.manifest.dialects)

    def setups(self) -> list[Setup]:
        """The set-ups that opened.

        Raises:
            CheckSkippedError: none did.
        """
        _ = self.device
        setups = [each for each in self._attempts.values() if isinstance(each, Setup)]
        if not setups:
            raise CheckSkippedError("no graph could be opened; the check `opens` says why")
        return setups

    def setup(self, name: str) -> Setup:
        """The set-up of that name.

        Raises:
            CheckFailedError: the spec wants it, and it does not open.
            CheckSkippedError: the bundle has no such graphs, or the backend refuses them by an
                error of twostroke's own, which is its right.
        """
        _ = self.device
        attempt = self._attempts.get(name)
        if attempt is None:
            raise CheckSkippedError(f"the bundle has no {name} graphs")
        if isinstance(attempt, Setup):
            return attempt
        if name == self.preferred:
            raise CheckFailedError(f"the spec wants {name} graphs, and cannot open them: {attempt}")
        if not isinstance(attempt, TwostrokeError):
            raise CheckFailedError(f"refused with {type(attempt).__name__}: {attempt}")
        raise CheckSkippedError(f"refused: {attempt}")

    def open_runner(
        self,
        prefill: Backend,
        decode: Backend,
        dialects: Mapping[Stroke, str],
        extent: Extent | None = None,
    ) -> Runner:
        """Both strokes of the bundle; the caller closes the runner.

        `extent` is what the KV cache begins with where its memory is not free until it is written.
        """
        return open_runner(
            self.opened_bundle,
            prefill,
            decode,
            num_rows=NUM_ROWS,
            context_tokens=CONTEXT_TOKENS,
            dialects=dialects,
            extent=extent,
        )

    @contextmanager
    def another(self) -> Iterator[Backend]:
        """A second instance of the backend, closed at the end."""
        backend = self.spec.open(self.device, self.options)
        try:
            yield backend
        finally:
            backend.close()

    @contextmanager
    def running(
        self, prefill: Backend, decode: Backend, dialects: Mapping[Stroke, str]
    ) -> Iterator[Runner]:
        """A runner that is closed at the end."""
        runner = self.open_runner(prefill, decode, dialects)
        try:
            yield runner
        finally:
            runner.close()

    def close(self) -> None:
        """Closes what the checks opened."""
        with suppress(Exception):  # a backend that cannot be closed has failed a check by now
            self._owned.close()
