"""One run: reaches the endpoints, warms them up, and lets a scenario loose on them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from twostroke.bench.client import Client, Target
from twostroke.bench.report import Result
from twostroke.bench.scenarios import warm_up
from twostroke.errors import TwostrokeError

_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)
_LONGEST_LINE_BYTES = 2**20

Scenario = Callable[[Sequence[Client]], Awaitable[list[Result]]]


def run(targets: Sequence[Target], scenario: Scenario, *, num_warm_ups: int) -> list[Result]:
    """Runs a scenario on endpoints that are up, from an event loop of its own.

    Raises:
        TwostrokeError: an endpoint cannot be reached, or does not name its model.
    """
    return asyncio.run(_run(targets, scenario, num_warm_ups))


async def _run(targets: Sequence[Target], scenario: Scenario, num_warm_ups: int) -> list[Result]:
    connector = aiohttp.TCPConnector(limit=0)  # the load says how many there are, not the client
    async with aiohttp.ClientSession(
        connector=connector, timeout=_TIMEOUT, read_bufsize=_LONGEST_LINE_BYTES
    ) as session:
        clients = [Client(session, await _reached(session, target)) for target in targets]
        await warm_up(clients, num_warm_ups)
        return await scenario(clients)


async def _reached(session: aiohttp.ClientSession, target: Target) -> Target:
    """The target with the name of its model, which OpenAI's surfaces must be told.

    Raises:
        TwostrokeError: nobody answers, or no model is listed and none was named.
    """
    if target.model is not None:
        return target
    headers = {} if target.key is None else {"Authorization": f"Bearer {target.key}"}
    try:
        async with session.get(f"{target.url}/v1/models", headers=headers) as response:
            status, body = response.status, await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise TwostrokeError(
            f"{target.url}/v1/models does not answer with JSON ({error}); give the URL of a "
            "running server, e.g. http://127.0.0.1:8080, or its model with --served-model."
        ) from None
    names = [each["id"] for each in body.get("data") or ()] if status == 200 else []
    if not names:
        raise TwostrokeError(
            f"{target.url}/v1/models answers {status} and lists no model; name one with "
            "--served-model, and a key with --key where the server wants one."
        )
    return dataclasses.replace(target, model=names[0])
