"""Spans of live requests, as OpenTelemetry's own exporter for tests gets them."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from twostroke.errors import InstallError
from twostroke.server import endpoint
from twostroke.server.traces import Traces

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.traces = Traces(self.exporter)

    def spans(self, root: str) -> dict[str, ReadableSpan]:
        """All of them, once `root` has come: the client has its answer before that."""
        for _ in range(2000):
            self.traces._provider.force_flush()
            found = {span.name: span for span in self.exporter.get_finished_spans()}
            if root in found:
                return found
            time.sleep(0.005)
        raise AssertionError(f"no span {root}: {list(found)}")


@pytest.fixture
def traced(monkeypatch) -> Iterator[Traced]:
    traced = Traced()
    monkeypatch.setattr(endpoint, "Traces", lambda: traced.traces)
    yield traced
    traced.traces.close()


def test_an_answer_is_a_span_with_its_stages_below_it(serve_echo, traced):
    live = serve_echo(server={"traces": True})
    live.post("/generate", {"prompt": "hello", "max_tokens": 4})
    spans = traced.spans("POST /generate")
    root = spans.pop("POST /generate")
    assert set(spans) == {"tokenise", "queue", "prefill", "decode"}
    for span in spans.values():
        assert span.parent.span_id == root.context.span_id
        assert root.start_time <= span.start_time <= span.end_time
    assert spans["prefill"].end_time <= spans["decode"].start_time
    facts = root.attributes
    assert facts["http.response.status_code"] == 200
    assert facts["gen_ai.request.model"] == "echo"
    assert facts["gen_ai.usage.input_tokens"] == 5
    assert facts["gen_ai.usage.output_tokens"] == 4
    assert facts["gen_ai.response.finish_reasons"] == ("length",)
    assert root.resource.attributes["service.name"] == "twostroke"


def test_each_choice_has_stages_of_its_own(serve_echo, traced):
    live = serve_echo(server={"traces": True})
    live.post("/generate", {"prompt": "hello", "n": 2, "max_tokens": 4})
    root = traced.spans("POST /generate")["POST /generate"]
    assert root.attributes["gen_ai.request.choice.count"] == 2
    assert root.attributes["gen_ai.usage.input_tokens"] == 5
    assert root.attributes["gen_ai.usage.output_tokens"] == 8
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length", "length")
    spans = [span for span in traced.exporter.get_finished_spans() if span is not root]
    told = sorted((span.name, span.attributes.get("twostroke.choice")) for span in spans)
    stages = [(name, i) for name in ("decode", "prefill", "queue") for i in (0, 1)]
    assert told == [*stages, ("tokenise", None)]


def test_the_environment_may_name_the_service(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    traced = Traced()
    assert traced.traces._provider.resource.attributes["service.name"] == "mine"
    traced.traces.close()


def test_the_callers_trace_goes_on(serve_echo, traced):
    live = serve_echo(server={"traces": True})
    header = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
    live.post("/v1/completions", {"prompt": "hi"}, traceparent=header)
    span = traced.spans("POST /v1/completions")["POST /v1/completions"]
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"


def test_a_refused_request_has_its_status_and_no_stages(serve_echo, traced):
    live = serve_echo(server={"traces": True})
    live.get("/health")
    live.post("/generate", {"prompt": ""})
    spans = traced.spans("POST /generate")
    assert list(spans) == ["POST /generate"]
    assert spans["POST /generate"].attributes["http.response.status_code"] == 400


def test_without_the_packages_the_start_is_refused(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("opentelemetry"):
            raise ImportError("gone", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InstallError, match=r"twostroke\[otel\]"):
        Traces()
