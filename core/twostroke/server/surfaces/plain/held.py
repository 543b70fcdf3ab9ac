"""Answers as server-sent events that a client may come back to: `Last-Event-ID`.

An answer is made by a task of its own, which fills a bounded buffer; a connection reads from that.
When it is lost, the request that asked for the answer stays for a while, and with it all that it
holds (its model, its share of a key's limits); another connection then reads on where the first
one was. Nobody can tell which bytes a lost connection has delivered, so what was sent is kept too,
as far as the buffer goes, and so is the end of an answer that seems to have been read.
"""

from __future__ import annotations

import asyncio
import re

from aiohttp import web

from twostroke.config.schema import ServerConfig
from twostroke.server.surfaces.plain.held_answer import HeldAnswer, gone, wrong_id

_MAX_ENDED_BYTES = 16 * 1024 * 1024  # of all that have ended
_LAST_ID = re.compile(r"([0-9a-f]{32})\.(\d{1,12})")


class HeldAnswers:
    """The answers of an application that may be come back to, each by its own key."""

    def __init__(self, resume_s: float) -> None:
        """`resume_s` 0 holds none."""
        self.resume_s = resume_s
        self._answers: dict[str, HeldAnswer] = {}
        self._ended: dict[str, asyncio.TimerHandle] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._answers)

    def hold(self, answer_id: str, scope: str) -> HeldAnswer:
        """A new answer, which is to be filled; it is held until it is let go."""
        answer = self._answers[answer_id] = HeldAnswer(answer_id, scope)
        return answer

    def let_go(self, answer: HeldAnswer) -> None:
        """Ends the holding of an answer; one that is over is held for `resume_s` more."""
        if not answer.is_over or not answer.num_events:
            self._answers.pop(answer.answer_id, None)
            return
        loop = asyncio.get_running_loop()
        self._ended[answer.answer_id] = loop.call_later(
            self.resume_s, self._forget, answer.answer_id
        )
        while sum(self._answers[each].num_bytes for each in self._ended) > _MAX_ENDED_BYTES:
            self._forget(next(iter(self._ended)))

    def find(self, scope: str, last_id: str) -> tuple[HeldAnswer, int]:
        """The answer that an event belongs to, and the event's number.

        Raises:
            RequestError: it is no id of an event, or there is nothing held behind it for this key.
        """
        parsed = _LAST_ID.fullmatch(last_id)
        if parsed is None:
            raise wrong_id("it is an event's id as it was sent")
        answer, after = self._answers.get(parsed[1]), int(parsed[2])
        if answer is None or answer.scope != scope:
            raise gone()
        answer.check(after)
        return answer, after

    def _forget(self, answer_id: str) -> None:
        self._ended.pop(answer_id).cancel()
        del self._answers[answer_id]


HELD = web.AppKey("held", HeldAnswers)


def set_up_held(app: web.Application, config: ServerConfig) -> None:
    """Gives an application its held answers."""
    app[HELD] = HeldAnswers(config.resume_s)
