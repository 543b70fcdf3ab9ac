"""How much of a server one key may have: requests and tokens a minute, requests at once."""

from __future__ import annotations

import math
from typing import Protocol

from twostroke.api_keys.buckets import Bucket, Clock
from twostroke.errors import RateLimitError

_CONCURRENCY_RETRY_S = 1


class Limits(Protocol):
    """What limits a key; None is no limit."""

    @property
    def requests_per_minute(self) -> int | None:
        """Requests that may begin in a minute."""
        ...

    @property
    def tokens_per_minute(self) -> int | None:
        """Tokens of prompts and answers in a minute."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Requests that may run at once."""
        ...


class Allowance:
    """Owns the counts of one key. Used in one thread."""

    def __init__(self, name: str, limits: Limits, clock: Clock) -> None:
        """`name` is the key's, for messages."""
        self._name, self._clock = name, clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self._num_running = 0
        self.limit(limits)

    def limit(self, limits: Limits) -> None:
        """Other limits from now on; what runs and what was used stays counted. Mutates."""
        self._concurrency = limits.concurrency
        self._requests = self._resized(self._requests, limits.requests_per_minute)
        self._tokens = self._resized(self._tokens, limits.tokens_per_minute)

    def enter(self) -> Admission:
        """Lets one request begin. Whoever is given the admission must `leave` it once. Mutates.

        Raises:
            RateLimitError: too many run, came in the last minute, or used too many tokens.
        """
        if self._concurrency is not None and self._num_running >= self._concurrency:
            what = "request" if self._concurrency == 1 else "requests"
            raise RateLimitError(
                f"The key {self._name!r} may have {self._concurrency} {what} running at once; wait "
                "for one to end.",
                limit="concurrency",
                retry_after_s=_CONCURRENCY_RETRY_S,
            )
        if self._requests is not None:
            self._await(self._requests, 1, "requests")
        if self._tokens is not None:
            self._await(self._tokens, 1, "tokens")  # in debt for an answer: nothing begins
        if self._requests is not None:
            self._requests.take(1)
        self._num_running += 1
        return Admission(self)

    def take_tokens(self, count: int) -> None:
        """Takes the tokens of a prompt, if they are to be had. Mutates.

        A prompt of more than a minute's tokens waits until nothing is used, and is owed for.

        Raises:
            RateLimitError: too many were used in the last minute.
        """
        if self._tokens is not None:
            self._await(self._tokens, count, "tokens")
            self._tokens.take(count)

    def leave(self, num_tokens: int) -> None:
        """Ends a request, which has answered so many tokens. Mutates."""
        self._num_running -= 1
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def headers(self) -> dict[str, str]:
        """What is left, in the headers that OpenAI's clients read."""
        found = {}
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{what}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.level)))
                until_full_s = bucket.wait_s(bucket.per_minute)
                found[f"x-ratelimit-reset-{what}"] = f"{until_full_s:.3f}s"
        return found

    def _resized(self, bucket: Bucket | None, per_minute: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return Bucket(per_minute, self._clock)
        if bucket.per_minute != per_minute:
            bucket.resize(per_minute)
        return bucket

    def _await(self, bucket: Bucket, amount: int, what: str) -> None:
        wait_s = bucket.wait_s(amount)
        if wait_s > 0:
            retry_after_s = math.ceil(wait_s)
            share = what.removesuffix("s") if bucket.per_minute == 1 else what
            raise RateLimitError(
                f"The key {self._name!r} may have {bucket.per_minute} {share} a minute, and has "
                f"had them; try again in {retry_after_s} s.",
                limit=what,
                retry_after_s=retry_after_s,
            )


class Admission:
    """One request's place in its key's allowance."""

    __slots__ = ("_allowance",)

    def __init__(self, allowance: Allowance | None) -> None:
        """None: a caller without limits."""
        self._allowance = allowance

    def take_tokens(self, count: int) -> None:
        """Takes the tokens of the prompts.

        Raises:
            RateLimitError: too many were used in the last minute.
        """
        if self._allowance is not None:
            self._allowance.take_tokens(count)

    def leave(self, num_tokens: int) -> None:
        """Gives the place back, once; `num_tokens` were answered. Again: does nothing. Mutates."""
        allowance, self._allowance = self._allowance, None
        if allowance is not None:
            allowance.leave(num_tokens)
