"""`GET /metrics` over a live server, read with the library that Prometheus' own tests use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from twostroke.server.metrics.reference import insert_metrics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(live, **headers: str) -> Samples:
    page = live.get("/metrics", **headers)
    assert page.status == 200
    families = text_string_to_metric_families(page.body.decode())
    return dict(_flat(families))


def _flat(families) -> Iterator[tuple[tuple[str, frozenset[tuple[str, str]]], float]]:
    for family in families:
        for sample in family.samples:
            yield (sample.name, frozenset(sample.labels.items())), sample.value


def value(found: Samples, name: str, **labels: str) -> float:
    labels = {"model_name": "echo", **labels}
    return found[f"twostroke_{name}", frozenset(labels.items())]


def test_a_request_shows_in_the_counts(live):
    before = samples(live)
    live.post("/generate", {"prompt": "hello", "max_tokens": 4})
    after = samples(live)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("request_success_total", finished_reason="length") == 1
    assert grown("request_success_total", finished_reason="stop") == 0
    assert grown("prompt_tokens_total") == 5
    assert grown("generation_tokens_total") == 4
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == 3
    assert grown("stroke_duration_seconds_count", stroke="prefill") == 1
    assert grown("stroke_duration_seconds_count", stroke="decode") == 3
    assert grown("request_prompt_tokens_bucket", le="4.0") == 0
    assert grown("request_prompt_tokens_bucket", le="8.0") == 1
    labels = {"path": "/generate", "method": "POST", "status": "200"}
    key = ("twostroke_http_requests_total", frozenset(labels.items()))
    assert after[key] - before.get(key, 0) == 1


def test_histograms_add_up(live):
    live.post("/generate", {"prompt": "hello"})
    found = samples(live)
    for name, labels in found:
        if name.endswith("_count"):
            stem = name.removesuffix("_count")
            whole = found[f"{stem}_bucket", labels | {("le", "+Inf")}]
            assert whole == found[name, labels], name
            assert (f"{stem}_sum", labels) in found


def test_what_is_now_is_shown(live):
    found = samples(live)
    stats = live.model.engine.stats()
    assert value(found, "num_requests_running") == 0
    assert value(found, "num_requests_waiting") == 0
    assert value(found, "num_rows") == stats.num_rows
    assert 0 <= value(found, "kv_cache_usage_perc") <= 1
    assert value(found, "model_ready") == 1
    assert value(found, "memory_bytes", kind="planned") > 0
    nodes = [name for name in found if name[0] == "twostroke_placement_nodes"]
    assert {dict(labels)["stroke"] for _, labels in nodes} == {"prefill", "decode"}


def test_reused_prompts_show(live):
    prompt = "the same beginning of a prompt, long enough"
    live.post("/generate", {"prompt": f"{prompt} 1", "max_tokens": 2})
    before = samples(live)
    live.post("/generate", {"prompt": f"{prompt} 2", "max_tokens": 2})
    after = samples(live)
    asked, found = ("prefix_cache_queries_total", "prefix_cache_hits_total")
    assert value(after, asked) - value(before, asked) == len(prompt) + 2
    assert value(after, found) - value(before, found) == len(prompt) + 1


def test_a_deadline_that_passes_shows(live):
    before = samples(live)
    reply = live.post("/generate", {"prompt": "hello", "timeout_s": 1e-6, "stream": False})
    assert reply.status == 504
    after = samples(live)
    assert value(after, "request_expired_total") - value(before, "request_expired_total") == 1
    stages = {dict(labels).get("stage") for name, labels in after if "aborted" in name}
    assert {"waiting", "prefill", "decode"} <= stages


def test_made_up_paths_make_one_series(live):
    for path in ("/a", "/b", "/c?d"):
        assert live.get(path).status == 404
    found = samples(live)
    paths = {dict(labels)["path"] for name, labels in found if "http_requests_total" in name}
    assert "unknown" in paths
    assert not {"/a", "/b", "/c"} & paths


def test_openmetrics_is_spoken_to_those_who_ask_for_it(live):
    page = live.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert page.headers["Content-Type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics_families(page.body.decode())}
    assert "twostroke_time_to_first_token_seconds" in names


def test_keys_guard_the_page(serve_echo):
    live = serve_echo(server={"keys": ("secret",)})
    assert live.get("/metrics").status == 401
    assert samples(live, Authorization="Bearer secret")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_only_reading_is_allowed(live, method):
    assert live.ask(method, "/metrics").status == 405


ROOT = Path(__file__).parents[3]
QUERIES = [ROOT / "examples/monitoring/dashboard.json", ROOT / "docs/metrics.md"]


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: path.name)
def test_queries_name_what_the_page_shows(serve_echo, path):
    live = serve_echo(server={"keys": ("secret",)})
    live.post("/generate", {"prompt": "hi"}, Authorization="Bearer secret")
    shown = {name for name, _ in samples(live, Authorization="Bearer secret")}
    shown |= {name.removesuffix("_bucket") for name in shown}  # as the table names histograms
    asked = set(re.findall(r"\b(?:twostroke|process)_[a-z_0-9]*[a-z0-9]", path.read_text()))
    assert asked
    assert not {name for name in asked if name.startswith("twostroke_")} - shown


def test_the_table_of_the_documentation_is_made_from_the_page():
    path = ROOT / "docs/metrics.md"
    text = path.read_text(encoding="utf-8")
    assert insert_metrics(text) == text, "run: python -m twostroke.server.metrics.reference"
