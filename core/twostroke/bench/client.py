"""Asks one endpoint over HTTP and notes when each piece of the answer came."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from twostroke.bench.sample import Ask, Sample

Api = Literal["generate", "openai"]
_MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint. `model` is what it calls its model; None where it has only one."""

    url: str  # without a slash at the end
    api: Api = "generate"
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    name: str = ""  # how reports call it; the URL where it is empty

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.name or self.url


@dataclass(slots=True)
class _Stream:
    """What has come of an answer so far."""

    times: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None
    is_complete: bool = False
    error: str | None = None


class Client:
    """One endpoint, asked by any number of tasks at once.

    `clock` answers seconds that never go back. Failures become samples with an error: a load
    goes on when a request of it is refused.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target, self.clock = target, clock
        self._session = session
        self._headers = {} if target.key is None else {"Authorization": f"Bearer {target.key}"}

    async def ask(self, ask: Ask, on_token: Callable[[float], None] | None = None) -> Sample:
        """Sends one request and reads its stream; `on_token` is told each moment as it comes."""
        path, body = _body(self.target, ask)
        stream, started_at = _Stream(), self.clock()
        try:
            async with self._session.post(
                f"{self.target.url}{path}",
                json=body,
                headers={**self._headers, "Accept": "application/x-ndjson, text/event-stream"},
            ) as response:
                if response.status == 200:
                    await self._read(response, stream, on_token)
                else:
                    reason = (await response.text()).strip()
                    stream.error = f"{response.status} {reason}"[:_MAX_SHOWN]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            stream.error = f"{type(error).__name__}: {error}"[:_MAX_SHOWN]
        if stream.error is None and not stream.is_complete:
            stream.error = "the stream broke off"
        return Sample(
            started_at,
            self.clock(),
            tuple(stream.times),
            stream.num_prompt_tokens,
            len(stream.times) if stream.num_tokens is None else stream.num_tokens,
            "".join(stream.pieces),
            stream.error,
        )

    async def _read(
        self,
        response: aiohttp.ClientResponse,
        stream: _Stream,
        on_token: Callable[[float], None] | None,
    ) -> None:
        async for line in response.content:
            now = self.clock()
            text = line.decode().strip().removeprefix("data:").strip()
            if text == "[DONE]":
                stream.is_complete = True
            elif text and not text.startswith((":", "event:")):
                piece = _note(json.loads(text), stream)
                if piece is not None:
                    stream.pieces.append(piece)
                    stream.times.append(now)
                    if on_token is not None:
                        on_token(now)

    async def get(self, path: str) -> tuple[int, float]:
        """The status of a GET and the seconds until its body was there; status 0 if none came."""
        started_at = self.clock()
        try:
            async with self._session.get(
                f"{self.target.url}{path}", headers=self._headers
            ) as response:
                await response.read()
                return response.status, self.clock() - started_at
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, self.clock() - started_at


def _body(target: Target, ask: Ask) -> tuple[str, dict[str, Any]]:
    """Path and body of a streamed, greedy request that goes on to its last token."""
    is_chat = not isinstance(ask.prompt, str)
    body: dict[str, Any] = {
        "messages" if is_chat else "prompt": ask.prompt,
        "max_tokens": ask.num_answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    if target.model is not None:
        body["model"] = target.model
    if target.api == "generate":
        return "/generate", body
    body["stream_options"] = {"include_usage": True}
    return "/v1/chat/completions" if is_chat else "/v1/completions", body


def _note(event: dict[str, Any], stream: _Stream) -> str | None:
    """Takes one event of a stream in; answers its text, None where it is no piece of the answer.

    Mutates `stream`.
    """
    if event.get("error"):
        stream.error = str(event["error"])[:_MAX_SHOWN]
        return None
    if "token_id" in event:  # of /generate
        return str(event["text"])
    if event.get("done"):
        stream.is_complete = True
        stream.num_prompt_tokens = event["num_prompt_tokens"]
        stream.num_tokens = event["num_completion_tokens"]
        return None
    if usage := event.get("usage"):
        stream.num_prompt_tokens = usage.get("prompt_tokens")
        stream.num_tokens = usage.get("completion_tokens")
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
        return text or None
    return None
