"""`POST /generate`: the plain surface. `curl -N` on it types like a person.

The body is `{"prompt": …}` or `{"messages": […]}` with the fields of `SamplingFields` and
`QueueFields`; a field it does not know is an error. One of `json_schema` (a schema), `json_object`
(true), `regex`, `choice` (a list of strings) and `grammar` (llguidance's Lark dialect) says what
the answer must look like; a bad one is a 400 before any byte of the answer. With messages, `tools`,
`tool_choice` and `parallel_tool_calls` are OpenAI's; JSON and the last line of NDJSON then hold
`reasoning` and `tool_calls`, and the text of JSON is without them. What comes back depends on
`Accept` and `"stream"`:

| Accept | "stream" | answer |
|---|---|---|
| anything else, or none | true (default) | text/plain, each token a chunk of its own |
| application/x-ndjson | true (default) | one JSON object a token, and a last one with the facts |
| application/json | unset or false | one JSON object with the whole text |
| application/x-ndjson | false | the same JSON object |
| anything else, or none | false | text/plain, the whole text |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, ConfigDict

from twostroke.errors import RequestError, TwostrokeError
from twostroke.grammar import constraint_from
from twostroke.model import ReadAnswer, TextEvent
from twostroke.server.body import read_json
from twostroke.server.fields import Int, Messages, QueueFields, SamplingFields, check_shape
from twostroke.server.keys import ARRIVED_AT, MODELS, REQUEST_ID, SCOPE, TURN
from twostroke.server.replies import dump, error_body, json_reply, timings_body
from twostroke.server.stream import stream
from twostroke.server.tool_shapes import call_shape, finish_reason
from twostroke.server.turn import Answer, Prompt, Turn, gather, prepare
from twostroke.text.tools import tool_use
from twostroke.types import ConstraintKind, FinishedEvent

TEXT = "text/plain"
NDJSON = "application/x-ndjson"
JSON = "application/json"


def _check_prompt(value: Any) -> Any:
    is_ids = isinstance(value, list) and set(map(type, value)) <= {int}
    if value is None or isinstance(value, str) or is_ids:
        return value
    raise ValueError("must be a string or a list of token ids")


class GenerateBody(SamplingFields, QueueFields):
    """The body of `/generate`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    prompt: Annotated[Any, BeforeValidator(_check_prompt)] = None
    messages: Messages | None = None
    model: str | None = None
    stream: bool | None = None
    stop_ids: list[Int] | None = None
    json_schema: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None

    def source(self) -> Prompt:
        """The prompt or the messages.

        Raises:
            RequestError: both or neither are there.
        """
        if (self.prompt is None) == (self.messages is None):
            which = "Neither prompt nor messages is" if self.prompt is None else "Both are"
            raise RequestError(f"{which} there; send either a prompt or messages.", param="prompt")
        return self.prompt if self.messages is None else self.messages


async def generate(request: web.Request) -> web.StreamResponse:
    """Answers `POST /generate`."""
    body = check_shape(GenerateBody, await read_json(request))
    accepted = preferred(request.headers.get("Accept", ""))
    if accepted == JSON and body.stream:
        raise RequestError(
            f'With "stream": true ask for {NDJSON} or {TEXT} in Accept; {JSON} is one whole '
            "object.",
            param="stream",
        )
    given = body.sampling()
    if body.stop_ids is not None:
        given["stop_ids"] = frozenset(body.stop_ids)
    tools = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    turn = request[TURN] = await prepare(
        request.app[MODELS].find(body.model),
        body.source(),
        given,
        request_id=request[REQUEST_ID],
        arrived_at=request[ARRIVED_AT],
        scope=request[SCOPE],
        constraint=constraint_from({kind: getattr(body, kind) for kind in ConstraintKind}),
        tools=tools,
        reads_sections=tools is not None,
    )
    turn.request = body.scheduled(turn.request, turn.arrived_at)
    if accepted != JSON and body.stream is not False:
        return await stream(request, turn, NdjsonFrames(turn) if accepted == NDJSON else Text())
    whole = await gather(turn)
    if accepted == TEXT:
        return web.Response(text=whole.text)
    return json_reply(_whole_body(turn, whole))


def preferred(accept: str) -> str:
    """The media type of ours that an `Accept` header likes best; text where it names none."""
    best, best_quality = TEXT, 0.0
    for entry in accept.split(","):
        name, *params = (part.strip().lower() for part in entry.split(";"))
        quality = 1.0
        for param in params:
            if param.startswith("q="):
                try:
                    quality = float(param[2:])
                except ValueError:
                    quality = 0.0
        if name in (TEXT, NDJSON, JSON) and quality > best_quality:
            best, best_quality = name, quality
    return best


class Text:
    """Nothing but the text."""

    content_type = "text/plain; charset=utf-8"

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def token(self, event: TextEvent) -> bytes:
        """The token's text; empty while a character is incomplete."""
        return event.text.encode()

    def closing(self, event: FinishedEvent) -> Iterable[bytes]:
        """Nothing."""
        return ()

    def fault(self, error: TwostrokeError) -> bytes:
        """Nothing: a message inside the text would be taken for the model's."""
        return b""


class NdjsonFrames:
    """One JSON object a line."""

    content_type = NDJSON

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._parts = ReadAnswer(turn.new_call_id)

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def token(self, event: TextEvent) -> bytes:
        """`{"index", "token_id", "text"}`."""
        self._parts.add(self._turn.read(event.text))
        facts = {"index": event.index, "token_id": event.token_id, "text": event.text}
        return dump(facts) + b"\n"

    def closing(self, event: FinishedEvent) -> Iterable[bytes]:
        """The finish reason, the counts, the timings; calls and reasoning where they are read."""
        self._parts.add(self._turn.read_rest())
        yield dump({"done": True, **_facts(self._turn, event, self._parts)}) + b"\n"

    def fault(self, error: TwostrokeError) -> bytes:
        """OpenAI's error object."""
        return dump(error_body(error)) + b"\n"


def _whole_body(turn: Turn, whole: Answer) -> dict[str, Any]:
    return {"text": whole.parts.text, **_facts(turn, whole.finished, whole.parts)}


def _facts(turn: Turn, finished: FinishedEvent, parts: ReadAnswer) -> dict[str, Any]:
    calls = [call_shape(call) for call in parts.tool_calls]
    sections = {} if turn.parser is None else {"reasoning": parts.reasoning, "tool_calls": calls}
    return {
        "model": turn.model.name,
        "request_id": turn.request.request_id,
        **sections,
        "finish_reason": finish_reason(finished, called=bool(calls)),
        "num_prompt_tokens": finished.num_prompt_tokens,
        "num_completion_tokens": finished.num_completion_tokens,
        "timings": timings_body(finished.timings),
    }
