"""`POST /generate`: the plain surface. `curl -N` on it types like a person.

The body is `{"prompt": …}` or `{"messages": […]}` with the fields of `SamplingFields` and
`QueueFields`; a field it does not know is an error. One of `json_schema` (a schema), `json_object`
(true), `regex`, `choice` (a list of strings) and `grammar` (llguidance's Lark dialect) says what
the answer must look like; a bad one is a 400 before any byte of the answer. With messages, `tools`,
`tool_choice` and `parallel_tool_calls` are OpenAI's; JSON and the last line of NDJSON then hold
`reasoning` and `tool_calls`, and the text of JSON is without them. `n` asks for several answers.
`progress` and `show_prompt` add lines to NDJSON and to events.
What comes back depends on `Accept` and `"stream"` (`frames` writes it):

| Accept | "stream" | answer |
|---|---|---|
| anything else, or none | true (default) | text/plain, each token a chunk of its own |
| application/x-ndjson | true (default) | one JSON object a token, and a last one with the facts |
| text/event-stream | true (default) | the same objects as events, with ids to come back to |
| application/json | unset or false | one JSON object with the whole text |
| application/x-ndjson, text/event-stream | false | the same JSON object |
| anything else, or none | false | text/plain, the whole text |
"""

from __future__ import annotations

from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, ConfigDict

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.server.answers import gather
from twostroke.server.begin import Wanted, begin
from twostroke.server.body import read_json
from twostroke.server.choices import num_choices
from twostroke.server.fields import Count, Int, Messages, QueueFields, SamplingFields, check_shape
from twostroke.server.replies import json_reply
from twostroke.server.stream import stream
from twostroke.server.surfaces.plain.events import resume_events, send_events
from twostroke.server.surfaces.plain.frames import (
    NdjsonFrames,
    TextFrames,
    prompt_line,
    whole_body,
    whole_text,
)
from twostroke.server.turn import Prompt
from twostroke.text.template_variables import check_variables
from twostroke.text.tools import tool_use
from twostroke.types import ConstraintKind

TEXT = "text/plain"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
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
    """text that goes on"""
    messages: Messages | None = None
    """a conversation, instead of a prompt"""
    model: str | None = None
    """which one, by name or alias; left out: `server.default_model`, or the first"""
    n: Count = None  # `num_choices` checks it
    """answers to each prompt, 1 to 128; they are taken or refused together"""
    stream: bool | None = None
    """whether tokens are sent as they are made"""
    stop_ids: list[Int] | None = None
    """tokens that end the answer"""
    json_schema: Any = None
    """the answer is JSON that follows it"""
    json_object: bool | None = None
    """the answer is a JSON object"""
    regex: str | None = None
    """the answer matches it"""
    choice: list[str] | None = None
    """the answer is one of them"""
    grammar: str | None = None
    """the answer follows it (llguidance's Lark dialect)"""
    tools: Any = None
    """functions that may be called"""
    tool_choice: Any = None
    """`none`, `auto`, `required`, one function, `allowed_tools`"""
    parallel_tool_calls: bool | None = None
    """false: one call at most"""
    chat_template_kwargs: Any = None  # `check_variables` checks it
    """with messages: values that the chat template asks for"""
    progress: bool | None = None
    """NDJSON lines that say how far the prompt has come"""
    show_prompt: bool | None = None
    """an NDJSON line with the tokens of the prompt, before all others"""

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: two fields contradict each other.
        """
        given = super().sampling()
        if self.stop_ids is not None:
            given["stop_ids"] = frozenset(self.stop_ids)
        return given

    def source(self) -> Prompt:
        """The prompt or the messages.

        Raises:
            RequestError: both or neither are there.
        """
        if (self.prompt is None) == (self.messages is None):
            which = "Neither prompt nor messages is" if self.prompt is None else "Both are"
            raise RequestError(f"{which} there; send either a prompt or messages.", param="prompt")
        return self.prompt if self.messages is None else self.messages


def check_lines(body: GenerateBody, accepted: str) -> None:
    """Refuses to leave out silently what only lines can tell.

    Raises:
        RequestError: lines are asked for and the answer has none.
    """
    has_lines = accepted in (NDJSON, SSE) and body.stream is not False
    for name in ("progress", "show_prompt"):
        if getattr(body, name) and not has_lines:
            raise RequestError(
                f"{name} adds lines to a streamed answer: send the header `Accept: {NDJSON}`, and "
                'leave "stream" out.',
                param=name,
            )


async def generate(request: web.Request) -> web.StreamResponse:
    """Answers `POST /generate`."""
    accepted = preferred(request.headers.get("Accept", ""))
    last_id = request.headers.get("Last-Event-ID")
    if last_id and accepted == SSE:
        return await resume_events(request, last_id)
    body = check_shape(GenerateBody, await read_json(request))
    if accepted == JSON and body.stream:
        raise RequestError(
            f'With "stream": true ask for {NDJSON} or {TEXT} in Accept; {JSON} is one whole '
            "object.",
            param="stream",
        )
    check_lines(body, accepted)
    tools = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    wanted = Wanted(
        body.model,
        [body.source()],
        body.sampling(),
        body.scheduled,
        n=num_choices(body.n),
        constraint=constraint_from({kind: getattr(body, kind) for kind in ConstraintKind}),
        tools=tools,
        reads_sections=tools is not None,
        variables=check_variables(body.chat_template_kwargs),
        reports_progress=bool(body.progress),
    )
    turn = await begin(request, wanted)
    if accepted != JSON and body.stream is not False:
        if accepted == TEXT:
            return await stream(request, turn, TextFrames(turn))
        shown = await prompt_line(turn) if body.show_prompt else b""
        lines = NdjsonFrames(turn, shown)
        answer = stream if accepted == NDJSON else send_events
        return await answer(request, turn, lines)
    wholes = await gather(turn)
    if accepted == TEXT:
        return web.Response(text=whole_text(wholes))
    return json_reply(whole_body(turn, wholes))


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
        if name in (TEXT, NDJSON, SSE, JSON) and quality > best_quality:
            best, best_quality = name, quality
    return best
