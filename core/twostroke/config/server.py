"""The YAML's section `server`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from twostroke.config.values import Bytes, Section


class ServerConfig(Section):
    """Where the endpoint listens and who may use it."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="0 takes a free port and prints it")
    keys: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="accepted API keys; none means no check", repr=False
    )
    max_body: Bytes = Field(4 * 1024**2, description="largest request body, e.g. 4MiB")
    stored_responses: Bytes = Field(
        64 * 1024**2,
        description="memory for responses (/v1/responses) that clients may come back to; the "
        "longest unused ones go first; 0: none are kept",
    )
    traces: bool = Field(
        False, description="send OpenTelemetry spans by OTLP; needs the extra otel"
    )
    shutdown_timeout_s: float = Field(
        30.0, ge=0, description="how long running streams may go on after Ctrl-C or SIGTERM"
    )
    measure_device: bool = Field(
        True,
        description="measure what the device can do before the first model is ever loaded on it "
        "(about two seconds, once); answers then tell what fraction of that they reached",
    )
    default_model: str | None = Field(
        None, description="which model answers where a request names none; null: the first"
    )
    load_wait_s: float = Field(
        60.0,
        ge=0,
        description="how long a request waits for its model to be loaded before it gets a 503",
    )
    watch: bool = Field(
        True, description="take up changes of this file while serving, as SIGHUP does"
    )
