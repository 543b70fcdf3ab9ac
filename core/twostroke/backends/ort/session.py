"""A graph loaded into ONNX Runtime, and buffers tied to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

from twostroke.backends.ort.buffers import HostBuffer
from twostroke.backends.ort.library import dtype_name, first_line, onnxruntime
from twostroke.backends.ort.lost_devices import failed_run
from twostroke.backends.ort.placement import RECORD_KEY, read_placement, runs_as_one
from twostroke.backends.ort.staging import HostRead
from twostroke.backends.ort.threads import join_shared_threads
from twostroke.backends.protocol import Buffer, Placement, TensorSpec
from twostroke.errors import BackendError, BundleError, EngineError

FOLDER_KEY = "session.model_external_initializers_file_folder_path"
"""The session setting that says where a model given as bytes finds its weights."""


class Bindable(Protocol):
    """A buffer that can tie itself to an IOBinding."""

    def bind_input(self, binding: Any, name: str) -> None:
        """Ties the memory to a graph input."""
        ...

    def bind_output(self, binding: Any, name: str) -> None:
        """Ties the memory to a graph output."""
        ...


class OrtBinding:
    """Buffers tied to a session; run as often as needed. Keeps its buffers alive.

    `copied` names the inputs that the runtime copies to the device when they are bound, and that
    must therefore be bound anew by each run.
    """

    __slots__ = ("_binding", "_buffers", "_copied", "_run_options", "_session")

    def __init__(
        self,
        session: OrtSession,
        binding: Any,
        buffers: tuple[Buffer, ...],
        copied: Mapping[str, Bindable],
    ) -> None:
        self._session = session
        self._binding = binding
        self._buffers = buffers
        self._copied = copied
        self._run_options: Any = None  # of the run in progress

    def run(self) -> None:
        """Runs the graph and waits for its outputs. Mutates the bound outputs.

        Raises:
            EngineError: the run failed, or the session is closed.
        """
        self._run_options = onnxruntime().RunOptions()  # its own, so that no other run is ended
        try:
            self._session.run(self._binding, self._copied, self._run_options)
        finally:
            self._run_options = None


class InterruptibleOrtBinding(OrtBinding):
    """A binding of a graph whose nodes run one after another."""

    __slots__ = ()

    def interrupt(self) -> None:
        """Ends the run in progress after the operator it is at; any thread."""
        options = self._run_options
        if options is not None:
            options.terminate = True


class OrtSession:
    """One graph on one provider, with the proof of where its nodes are."""

    def __init__(
        self,
        graph: Path,
        session: Any,
        placement: Placement,
        *,
        on_host: bool = True,
        one_run_at_a_time: bool = False,
        is_interruptible: bool = True,
    ) -> None:
        """`is_interruptible` False: the graph is compiled to one step, which runs to its end."""
        self._graph = graph
        self._session: Any = session
        self._placement = placement
        self._on_host = on_host
        self._turn = threading.Lock() if one_run_at_a_time else contextlib.nullcontext()
        self._is_interruptible = is_interruptible
        self._kept: Any = None
        self._inputs = _specs(session.get_inputs())
        self._outputs = _specs(session.get_outputs())

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The declared inputs by name."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """The declared outputs by name."""
        return self._outputs

    @property
    def placement(self) -> Placement:
        """Where the nodes run, as the runtime recorded it."""
        return self._placement

    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> OrtBinding:
        """Ties buffers to every declared input and output; about 0.2 ms for 125 tensors.

        Raises:
            BackendError: a tensor without a buffer, a buffer without a tensor, or another dtype.
        """
        self._check("input", self._inputs, inputs)
        self._check("output", self._outputs, outputs)
        binding = self._alive().io_binding()
        copied = {
            name: cast(Bindable, buffer)
            for name, buffer in inputs.items()
            if not self._on_host
            and isinstance(buffer, HostBuffer)
            and not isinstance(buffer, HostRead)
        }
        for name, buffer in inputs.items():
            if name not in copied:  # these are bound by each run, with what they hold then
                cast(Bindable, buffer).bind_input(binding, name)
        for name, buffer in outputs.items():
            cast(Bindable, buffer).bind_output(binding, name)
        return self._tied(binding, (*inputs.values(), *outputs.values()), copied)

    def _tied(
        self, binding: Any, buffers: tuple[Buffer, ...], copied: Mapping[str, Bindable]
    ) -> OrtBinding:
        """What is run; for who inherits to choose another kind."""
        make = InterruptibleOrtBinding if self._is_interruptible else OrtBinding
        return make(self, binding, buffers, copied)

    def run(self, binding: Any, copied: Mapping[str, Bindable], run_options: Any = None) -> None:
        """Runs an IOBinding made from this session; see `OrtBinding`.

        Raises:
            EngineError: the run failed, or the session is closed.
            DeviceLostError: the device is lost.
        """
        session = self._alive()
        try:
            with self._turn:
                for name, buffer in copied.items():
                    buffer.bind_input(binding, name)
                if copied:
                    binding.synchronize_inputs()
                session.run_with_iobinding(binding, run_options)
        except Exception as error:  # ONNX Runtime's errors share no base of their own
            raise failed_run(self._graph.name, error) from error

    def keep(self, used: Any) -> None:
        """Keeps what the session reads as long as it is open."""
        self._kept = used

    def close(self) -> None:
        """Frees the session. Its bindings refuse to run from now on."""
        self._session = self._kept = None

    def _alive(self) -> Any:
        if self._session is None:
            raise EngineError(f"the session of {self._graph.name} is closed")
        return self._session

    def _check(
        self, side: str, declared: Mapping[str, TensorSpec], given: Mapping[str, Buffer]
    ) -> None:
        if declared.keys() != given.keys():
            odd = sorted(declared.keys() ^ given.keys())[0]
            fault = "has no buffer" if odd in declared else "is not declared"
            raise BackendError(f"{self._graph.name}: the {side} {odd!r} {fault}")
        for name, buffer in given.items():
            if buffer.dtype != declared[name].dtype:
                raise BackendError(
                    f"{self._graph.name}: the {side} {name!r} is {declared[name].dtype}, "
                    f"its buffer {buffer.dtype}"
                )


def load_session(
    graph: Path,
    provider: str,
    provider_options: Mapping[str, str],
    session_options: Any,
    *,
    devices: Sequence[Any] | None = None,
    read: Callable[[Any, str], Placement] = read_placement,
    on_host: bool = True,
    one_run_at_a_time: bool = False,
    content: bytes | None = None,
    kind: Callable[..., OrtSession] | None = None,
) -> OrtSession:
    """Loads a graph on one provider and reads back where its nodes are. Proves nothing yet.

    `devices`: OrtEpDevices of a plugin provider, which gives the CPU where it is asked for by its
    name. `read` finds the places of a session's nodes. `on_host` False where the graph's inputs lie
    in a memory of the device's own. Where the process has one pool of threads for all sessions,
    this one joins it. `content`: what is loaded instead of the file's own bytes; it still finds its
    weights in the file's folder. `kind` makes the answer, from OrtSession's arguments.

    Raises:
        BundleError: the file is missing, damaged, or holds what this runtime cannot run.
    """
    session_options.add_session_config_entry(RECORD_KEY, "1")
    join_shared_threads(session_options)
    if not graph.is_file():
        raise BundleError(
            f"{graph} does not exist. Export the model again with `twostroke export`."
        )
    if content is not None:
        session_options.add_session_config_entry(FOLDER_KEY, str(graph.parent))
    by_name: dict[str, Any] = {"providers": [(provider, dict(provider_options))]}
    try:
        if devices is not None:
            session_options.add_provider_for_devices(list(devices), dict(provider_options))
            by_name = {}  # given names override the devices
        session = onnxruntime().InferenceSession(
            str(graph) if content is None else content,
            session_options,
            enable_fallback=0,  # or the wrapper retries on the CPU and only prints it
            **by_name,
        )
        placement = read(session, provider)
        is_interruptible = not runs_as_one(session)
    except Exception as error:
        raise BundleError(
            f"{graph} cannot be loaded on {provider}: {first_line(error)} "
            f"`twostroke verify` checks the bundle's files."
        ) from error
    return (kind or OrtSession)(
        graph,
        session,
        placement,
        on_host=on_host,
        one_run_at_a_time=one_run_at_a_time,
        is_interruptible=is_interruptible,
    )


def _specs(arguments: list[Any]) -> Mapping[str, TensorSpec]:
    return MappingProxyType(
        {
            argument.name: TensorSpec(
                argument.name,
                tuple(d if isinstance(d, int) else str(d) for d in argument.shape),
                dtype_name(argument.type),
            )
            for argument in arguments
        }
    )
