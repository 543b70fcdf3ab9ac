"""`GET /metrics`: the endpoint and its engines, for Prometheus."""

from twostroke.server.metrics.http_counts import HttpCounts
from twostroke.server.metrics.page import HTTP_COUNTS, MetricsPage

__all__ = ["HTTP_COUNTS", "HttpCounts", "MetricsPage"]
