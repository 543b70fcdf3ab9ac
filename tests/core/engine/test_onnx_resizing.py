"""Real graphs over a KV cache in a device's memory: its size changes no answer."""

from __future__ import annotations

import gc

import pytest

from twostroke.backends.ort import OrtValueBuffer, allocate_host, allocate_on_device
from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits, build_engine
from twostroke.engine.kv_extent import Extent
from twostroke.testing.host_as_device import HostAsDevice
from twostroke.types import Stroke

from .test_onnx_engine import CONTEXT_TOKENS, make_requests, serve

cpu = pytest.importorskip("twostroke_backends.cpu", reason="the CPU backend is not installed")
onnx_bundles = pytest.importorskip("twostroke.testing.onnx_bundles")


class DeviceBackend(cpu.CpuBackend):
    """The CPU provider over memory that is paid for when it is allocated."""

    touches_lazily = False
    memory_space = "device"

    def __init__(self, device, options):
        super().__init__(device, options)
        self.memory = HostAsDevice()

    def allocate(self, shape, dtype, *, on_host=False):
        if on_host:
            return allocate_host(shape, dtype)
        return allocate_on_device(self.memory, shape, dtype)


class OpaqueBackend(DeviceBackend):
    """Buffers that are handles: no views of rows or in other shapes, as WebGPU's."""

    has_row_views = False

    def allocate(self, shape, dtype, *, on_host=False):
        return allocate_host(shape, dtype) if on_host else OrtValueBuffer(shape, dtype, "cpu", 0)


def open_backend(kind):
    (device,) = cpu.probe().devices
    return kind(device, {"share_weights": False, "intra_op_threads": 1})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    dialects = "fused", "standard"
    model = onnx_bundles.TinyModel(dialects=dialects, context_tokens=4 * CONTEXT_TOKENS)
    return onnx_bundles.make_onnx_bundle(tmp_path_factory.mktemp("tiny") / "bundle", model)


@pytest.mark.parametrize("dialect", ["fused", "standard"])
def test_answers_are_those_of_memory_that_never_changes(tiny, recorder, dialect):
    limits = EngineLimits(max_rows=4, prefill_chunk_tokens=32, kv_budget_bytes=2**28)
    answers = []
    for kind in (cpu.CpuBackend, DeviceBackend):
        backend = open_backend(kind)
        engine = build_engine(
            open_bundle(tiny),
            backend,
            backend,
            limits,
            dialects=dict.fromkeys(Stroke, dialect),
            idle_after_s=0.0,
        )
        requests = make_requests(engine.vocab_size)
        answers.append([])
        for part in (requests[:3], requests[3:], requests[:2]):
            answers[-1].append(serve(engine, part, recorder))
            engine.run_step()  # the rest
        stats = engine.stats()
        if kind is DeviceBackend:
            gc.collect()
            plan = engine.memory_plan
            assert plan.num_rows == 4
            assert stats.kv_tokens_touched < plan.kv_tokens_total
            planned_bytes = plan.kv_bytes_now(stats.kv_tokens_touched, stats.kv_tokens_spare)
            assert backend.memory.taken_bytes == planned_bytes
        engine.stop()
        backend.close()
    assert answers[0] == answers[1]


def test_rows_are_copied_and_grown_on_the_device(tiny, recorder):
    backend = open_backend(DeviceBackend)
    limits = EngineLimits(
        max_rows=4, prefill_chunk_tokens=32, kv_budget_bytes=2**28, reuse_prefixes="all"
    )
    engine = build_engine(open_bundle(tiny), backend, backend, limits)
    first, *others = make_requests(engine.vocab_size)[4:]
    before = backend.memory.num_copies_out
    serve(engine, [first], recorder)
    again = [type(first)(f"again{n}", (*first.prompt_ids, n), first.sampling) for n in range(3)]
    serve(engine, [*again, *others], recorder)
    assert engine.stats().num_copied_tokens > 0
    assert engine._runner.extent == Extent(4, 256)
    assert backend.memory.num_copies_out == before
    engine.stop()
    backend.close()


@pytest.mark.parametrize("prefill", ["fused", "standard"])
def test_rows_of_opaque_buffers_come_and_go(tiny, recorder, prefill):
    dialects = {Stroke.PREFILL: prefill, Stroke.DECODE: "fused"}
    limits = EngineLimits(max_rows=4, prefill_chunk_tokens=32, kv_budget_bytes=2**28)
    answers = []
    for kind in (cpu.CpuBackend, OpaqueBackend):
        backend = open_backend(kind)
        engine = build_engine(
            open_bundle(tiny), backend, backend, limits, dialects=dialects, idle_after_s=0.0
        )
        requests = make_requests(engine.vocab_size)
        answers.append([])
        for part in (requests[:1], requests[1:6], requests[:2]):
            answers[-1].append(serve(engine, part, recorder))
            engine.run_step()  # the rest, which shrinks the cache
        engine.stop()
        backend.close()
    assert answers[0] == answers[1]
