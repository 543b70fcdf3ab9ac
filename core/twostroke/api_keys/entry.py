"""One key as the key file holds it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from twostroke.api_keys.secret import SHOWN_DIGEST, read_digest

Hash = Annotated[str, Field(pattern=f"^{SHOWN_DIGEST}$")]
KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Limit = Annotated[int, Field(ge=1)]


class PreviousSecret(BaseModel):
    """The secret before a rotation, for as long as it is taken too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hash: Hash
    until: AwareDatetime


class KeyEntry(BaseModel):
    """A key: its name, the hash of its secret, what it may do and until when.

    `id` stays the same when the secret is rotated: the KV cache knows by it whose prefixes it has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: KeyName
    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    hash: Hash
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    models: tuple[Annotated[str, Field(min_length=1)], ...] | None = None  # None: all of them
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None  # of prompts and answers together
    concurrency: Limit | None = None
    previous: PreviousSecret | None = None

    def is_expired(self, now: datetime) -> bool:
        """Whether the key is of no use any more. `now` has a time zone."""
        return self.expires_at is not None and now >= self.expires_at

    def digests(self, now: datetime) -> list[bytes]:
        """The digests of the secrets that it is known by at the moment, 32 bytes each."""
        hashes = [self.hash]
        if self.previous is not None and now < self.previous.until:
            hashes.append(self.previous.hash)
        return [value for each in hashes if (value := read_digest(each)) is not None]
