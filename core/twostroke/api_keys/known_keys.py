"""The keys a server takes, and whose each is."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from twostroke.api_keys.allowance import Allowance
from twostroke.api_keys.buckets import Clock
from twostroke.api_keys.caller import Caller
from twostroke.api_keys.entry import KeyEntry
from twostroke.api_keys.secret import digest, read_digest
from twostroke.errors import AuthError


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    caller: Caller
    entry: KeyEntry | None = None  # None: one of the YAML's


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


class KnownKeys:
    """Finds the caller of a secret. Used in the event loop's thread.

    Looked up is not the digest of a secret but that digest under a key of this process's own, which
    nobody else knows: how long that takes tells nothing of the digests known here. What is found is
    then compared in constant time.
    """

    def __init__(
        self,
        configured: Sequence[str] = (),
        *,
        clock: Clock = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`configured` are the secrets of `server.keys`, or their digests as `sha256:…`.

        `clock` is for rates, `now` for dates.
        """
        self._blind = secrets.token_bytes(32)
        self._clock, self._now = clock, now
        self._allowances: dict[str, Allowance] = {}
        self._entries: tuple[KeyEntry, ...] = ()
        self.configure(configured)

    def configure(self, secrets: Sequence[str]) -> None:
        """Takes these as the keys of the YAML, instead of those before. Mutates."""
        digests = [read_digest(each) or digest(each) for each in secrets]
        self._configured = [
            _Known(value, Caller(f"keys[{number}]", scope=value.hex()))
            for number, value in enumerate(digests)
        ]
        self.replace(self._entries)

    def replace(self, entries: Sequence[KeyEntry]) -> None:
        """Takes these keys, beside the configured ones, instead of those before. Mutates.

        What a key has used of its rates, and what it has running, stays counted.
        """
        self._entries = tuple(entries)
        known = list(self._configured)
        self._allowances = {each.id: self._allowance(each) for each in entries}
        for entry in entries:
            models = None if entry.models is None else frozenset(entry.models)
            caller = Caller(entry.name, entry.id, models, self._allowances[entry.id])
            known += [_Known(value, caller, entry) for value in entry.digests(self._now())]
        # Of two keys with one secret the first counts: those of the YAML before those of the file.
        self._by_blinded = {self._blinded(each.digest): each for each in reversed(known)}

    def find(self, secret: str) -> Caller:
        """Whose secret this is.

        Raises:
            AuthError: nobody's, or the key has expired.
        """
        given = digest(secret)
        known = self._by_blinded.get(self._blinded(given))
        if known is None or not hmac.compare_digest(known.digest, given):
            raise AuthError("The key that was sent is not known to this server.")
        if known.entry is not None:
            self._check_dates(known.entry, given)
        return known.caller

    def _check_dates(self, entry: KeyEntry, given: bytes) -> None:
        now = self._now()
        if entry.is_expired(now):
            assert entry.expires_at is not None, "it has expired"
            raise AuthError(
                f"The key {entry.name!r} expired on {entry.expires_at:%Y-%m-%d %H:%M %Z}; ask for "
                "a new one.",
                code="expired_api_key",
            )
        if given not in entry.digests(now):
            raise AuthError(
                f"The secret of the key {entry.name!r} was exchanged for another one; use that.",
                code="expired_api_key",
            )

    def _allowance(self, entry: KeyEntry) -> Allowance:
        known = self._allowances.get(entry.id)
        if known is None:
            return Allowance(entry.name, entry, self._clock)
        known.limit(entry)
        return known

    def _blinded(self, value: bytes) -> bytes:
        return hmac.digest(self._blind, value, "sha256")
