"""The YAML's section `server`: where the endpoint listens, who may use it, how much it takes."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from twostroke.config.values import Bytes, Section

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s@]+")
_HASH_DIGITS = frozenset("0123456789abcdef")


class TlsConfig(Section):
    """HTTPS from files, which are read again when they change; see docs/keys.md."""

    certificate: str | None = Field(
        None, min_length=1, description="a PEM file: the certificate, then those that signed it"
    )
    key: str | None = Field(
        None, min_length=1, description="a PEM file: its private key, without a password"
    )
    ca: str | None = Field(
        None,
        min_length=1,
        description="a PEM file: who signs the certificates that clients must show; null: none",
    )

    @model_validator(mode="after")
    def _both_or_none(self) -> TlsConfig:
        if (self.certificate is None) != (self.key is None) or (self.ca and not self.certificate):
            raise PydanticCustomError(
                "own_words", "certificate and key go together, and ca only goes beside them", {}
            )
        return self


class ServerConfig(Section):
    """Where the endpoint listens and who may use it."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="0 takes a free port and prints it")
    keys: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="accepted API keys, or their hashes as sha256:…", repr=False
    )
    key_file: str | None = Field(
        None,
        min_length=1,
        description="the file of `twostroke key`, read again when it changes; null: none",
    )
    insecure: tuple[Literal["keys", "tls"], ...] = Field(
        (),
        description="what a server that other machines reach may do without: keys, tls, or both",
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="sites whose pages may ask, e.g. https://app.example; with keys also *",
    )
    tls: TlsConfig = TlsConfig()
    max_connections: int = Field(
        4096,
        ge=16,
        description="open connections; above it the longest idle one is closed for a new one",
    )
    max_body: Bytes = Field(4 * 1024**2, description="largest request body, e.g. 4MiB")
    resume_s: float = Field(
        5.0,
        ge=0,
        le=600,
        description="how long a lost connection to a stream of events (/generate) may be come back "
        "to; the answer goes on meanwhile; 0: not at all, and its slot is free at once",
    )
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

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key, even if no key is known yet."""
        return bool(self.keys) or self.key_file is not None

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for number, origin in enumerate(origins):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise PydanticCustomError(
                    "own_words",
                    "item {number} must be * or a site like https://app.example:8443, without a "
                    "path",
                    {"number": number},
                )
        return origins

    @model_validator(mode="after")
    def _all_pages_need_a_key(self) -> ServerConfig:
        if "*" in self.cors_origins and not self.has_keys:
            raise PydanticCustomError(
                "own_words",
                "cors_origins may only be * where there are keys: any page that somebody opens "
                "could use the models",
                {},
            )
        return self

    @field_validator("keys")
    @classmethod
    def _hashes_are_whole(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for number, key in enumerate(keys):
            digits = key.removeprefix("sha256:")
            if digits != key and not (len(digits) == 64 and _HASH_DIGITS.issuperset(digits)):
                raise PydanticCustomError(
                    "own_words",
                    "item {number} begins with sha256: but no 64 lower-case hex digits follow",
                    {"number": number},
                )
        return keys
