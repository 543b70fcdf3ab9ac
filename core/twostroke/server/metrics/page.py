"""Puts the counts of an endpoint and its engines on a page that Prometheus reads."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Iterator, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from twostroke.model import Model
from twostroke.server.in_flight import InFlight
from twostroke.server.metrics.families import families
from twostroke.server.metrics.family import Family, Shown
from twostroke.server.metrics.http_counts import HttpCounts
from twostroke.server.models import Models

PREFIX = "twostroke_"
HTTP_COUNTS = web.AppKey("http_counts", HttpCounts)


class MetricsPage:
    """Answers `GET /metrics`. Nothing is counted here: each owner's counts are read when asked."""

    def __init__(self, models: Models, in_flight: InFlight, counts: HttpCounts) -> None:
        self._models = models
        self._registry = CollectorRegistry()
        self._registry.register(_Endpoint(models, in_flight, counts))
        self._models_shown = _Models()
        self._registry.register(self._models_shown)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The page, as OpenMetrics where the reader takes that, else as plain text."""
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        self._models_shown.models = self._models.ready()
        page = await asyncio.to_thread(encode, self._registry)
        return web.Response(body=page, headers={"Content-Type": content_type})


class _Endpoint(Collector):
    """The HTTP side."""

    def __init__(self, models: Models, in_flight: InFlight, counts: HttpCounts) -> None:
        self._models, self._in_flight, self._counts = models, in_flight, counts

    def collect(self) -> Iterator[Metric]:
        """One sample each, of the moment."""
        build = GaugeMetricFamily(
            f"{PREFIX}build_info", "The version that runs; always 1.", labels=["version"]
        )
        build.add_metric([importlib.metadata.version("twostroke")], 1)
        yield build
        ready = GaugeMetricFamily(
            f"{PREFIX}model_ready", "1 where the model is loaded.", labels=["model_name"]
        )
        for name, served in list(self._models.served.items()):
            ready.add_metric([name], served.resident is not None)
        yield ready
        yield GaugeMetricFamily(
            f"{PREFIX}http_requests_in_flight",
            "Requests that are being answered.",
            value=self._in_flight.count,
        )
        answers = CounterMetricFamily(
            f"{PREFIX}http_requests",
            "Answers by route and status; cut is a connection that ended before its answer did.",
            labels=["path", "method", "status"],
        )
        for labels, count in list(self._counts.answers.items()):
            answers.add_metric(labels, count)
        yield answers
        yield from self._of_keys()

    def _of_keys(self) -> Iterator[Metric]:
        """What each key was given; nothing where there are none."""
        requests = CounterMetricFamily(
            f"{PREFIX}key_requests",
            "Answers by the name of the key and status.",
            labels=["key", "status"],
        )
        tokens = CounterMetricFamily(
            f"{PREFIX}key_tokens",
            "Tokens by the name of the key and kind: prompt or completion.",
            labels=["key", "kind"],
        )
        for family, counts in (
            (requests, self._counts.key_requests),
            (tokens, self._counts.key_tokens),
        ):
            for labels, count in list(counts.items()):
                family.add_metric(labels, count)
            if family.samples:
                yield family


class _Models(Collector):
    """The loaded models."""

    def __init__(self) -> None:
        self.models: tuple[Model, ...] = ()

    def collect(self) -> Iterator[Metric]:
        """A family with the samples of every model."""
        shown = [Shown(model, model.engine.stats(), model.engine.health()) for model in self.models]
        for family in families():
            yield _metric(family, shown)


def _metric(family: Family, shown: Sequence[Shown]) -> Metric:
    labels = ["model_name", *family.labels]
    name = PREFIX + family.name
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=labels)
        for each in shown:
            for values, tally in family.read(each).items():
                total = tally.sum  # before the buckets, which may then hold one value more
                histogram.add_metric([each.model.name, *values], tally.cumulative(), total)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, family.help, labels=labels)
    for each in shown:
        for values, value in family.read(each).items():
            metric.add_metric([each.model.name, *values], value)
    return metric
