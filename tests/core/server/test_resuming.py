"""`/generate` as events: a client that lost its connection gets exactly the rest, or a reason."""

import asyncio
import json

import pytest

from twostroke.errors import RequestError
from twostroke.server.surfaces.plain.held_answer import HeldAnswer

SSE = "text/event-stream"
PROMPT = "hello, this is an answer"


def parsed(data):
    """Ids and objects of events."""
    events = [event.split(b"\n") for event in data.split(b"\n\n")]
    assert events.pop() == [b""]
    ids = [lines[0].removeprefix(b"id: ").decode() for lines in events]
    return ids, [json.loads(lines[1].removeprefix(b"data: ")) for lines in events]


def lost(live, num_events, **more):
    """Asks, reads some events and goes away; what was read."""
    with live.connect("/generate", {"prompt": PROMPT, **more}, Accept=SSE) as connection:
        assert b"text/event-stream" in connection.head()
        return parsed(b"".join(connection.chunk() for _ in range(num_events)))


def resume(live, last_id, **headers):
    return live.post("/generate", b"", Accept=SSE, Last_Event_ID=last_id, **headers)


def text_of(objects):
    return "".join(each.get("text", "") for each in objects)


def stats(live):
    return live.model.engine.stats()


def test_events_are_the_lines_of_ndjson_with_ids(serve_echo):
    live = serve_echo()
    reply = live.post("/generate", {"prompt": PROMPT, "seed": 1}, Accept=SSE)
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    ids, objects = parsed(reply.body)
    request_id = reply.headers["X-Request-Id"]
    assert ids == [f"{request_id}.{number}" for number in range(1, len(ids) + 1)]
    body = {"prompt": PROMPT, "seed": 1}
    lines = live.post("/generate", body, Accept="application/x-ndjson").body.splitlines()
    assert objects[:-1] == [json.loads(line) for line in lines][:-1]
    assert (objects[-1]["done"], objects[-1]["finish_reason"]) == (True, "stop")
    several = parsed(live.post("/generate", {**body, "n": 2}, Accept=SSE).body)[1]
    assert [each["choice"] for each in several if "finish_reason" in each] == [0, 1]


@pytest.mark.parametrize("num_events", [1, 5])
def test_a_lost_connection_is_gone_on_with(serve_echo, wait_until, num_events):
    live = serve_echo(step_delay_s=0.005)
    ids, first = lost(live, num_events)
    more_ids, rest = parsed(resume(live, ids[-1]).body)
    assert text_of(first + rest) == f"→{PROMPT}"
    numbers = [int(each.split(".")[1]) for each in ids + more_ids]
    assert numbers == list(range(1, len(numbers) + 1))
    assert rest[-1]["finish_reason"] == "stop"
    wait_until(lambda: live.get("/health").json()["num_requests_in_flight"] == 0)
    assert (stats(live).num_aborted, stats(live).num_finished) == (0, 1)
    again = parsed(resume(live, ids[-1]).body)[1]
    assert again == rest, "who got the end and lost it asks once more"
    assert parsed(resume(live, more_ids[-1]).body) == ([], [])


def test_a_connection_that_is_taken_over_is_cut(serve_echo):
    live = serve_echo(step_delay_s=0.005)
    with live.connect("/generate", {"prompt": PROMPT}, Accept=SSE) as first:
        first.head()
        ids, objects = parsed(first.chunk())
        rest = parsed(resume(live, ids[-1]).body)[1]
        _, ended_cleanly = first.chunks()
    assert not ended_cleanly
    assert text_of(objects + rest) == f"→{PROMPT}"


def test_it_may_be_lost_again(serve_echo):
    live = serve_echo(step_delay_s=0.005)
    ids, found = lost(live, 2)
    for _ in range(3):
        headers = {"Accept": SSE, "Last-Event-ID": ids[-1]}
        with live.connect("/generate", {}, **headers) as connection:
            connection.head()
            ids, objects = parsed(connection.chunk())
        found += objects
    found += parsed(resume(live, ids[-1]).body)[1]
    assert text_of(found) == f"→{PROMPT}"
    assert stats(live).num_aborted == 0


def test_an_answer_that_nobody_comes_back_to_is_ended(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.02, server={"resume_s": 0.1})
    ids, _ = lost(live, 1, ignore_eos=True, max_tokens=4000)
    wait_until(lambda: stats(live).num_aborted == 1)
    wait_until(lambda: resume(live, ids[-1]).status == 404)
    assert resume(live, ids[-1]).error()["code"] == "stream_not_found"


def test_without_time_to_come_back_a_slot_is_free_at_once(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.02, server={"resume_s": 0})
    ids, _ = lost(live, 1)
    wait_until(lambda: stats(live).num_running == 0)
    assert stats(live).num_aborted == 1
    assert resume(live, ids[-1]).status == 404


def test_before_the_first_event_nobody_can_come_back(serve_echo, wait_until):
    live = serve_echo(prefill_delay_s_per_token=0.002, server={"resume_s": 600})
    connection = live.connect("/generate", {"prompt": "x" * 400}, Accept=SSE)
    wait_until(lambda: stats(live).num_running == 1)
    connection.close()
    wait_until(lambda: stats(live).num_aborted == 1)


def test_an_answer_belongs_to_its_key(serve_echo):
    live = serve_echo(server={"keys": ("one", "two")})
    body = {"prompt": "abc"}
    ids, objects = parsed(live.post("/generate", body, Accept=SSE, Authorization="Bearer one").body)
    assert resume(live, ids[0], Authorization="Bearer two").status == 404
    mine = resume(live, ids[0], Authorization="Bearer one")
    assert parsed(mine.body) == (ids[1:], objects[1:])


@pytest.mark.parametrize(
    ("last_id", "status"), [("x", 400), ("0" * 32, 400), (f"{'0' * 32}.1", 404)]
)
def test_a_wrong_id_is_refused(live, last_id, status):
    reply = resume(live, last_id)
    assert (reply.status, reply.error()["param"]) == (status, "Last-Event-ID")


def test_an_event_that_never_was_is_refused(live):
    ids, _ = parsed(live.post("/generate", {"prompt": "a"}, Accept=SSE).body)
    assert resume(live, ids[0].split(".")[0] + ".999").status == 400


def test_what_is_wrong_before_the_first_event_has_its_status(serve_echo):
    live = serve_echo(fail_prefill_runs=[0])
    assert live.post("/generate", {"prompt": "x" * 9000}, Accept=SSE).status == 400
    assert live.post("/generate", {"prompt": "abc"}, Accept=SSE).status == 500


def test_a_fault_is_an_event_and_cuts(serve_echo):
    live = serve_echo(fail_decode_runs=[3])
    with live.connect("/generate", {"prompt": "abcdef"}, Accept=SSE) as connection:
        connection.head()
        chunks, ended_cleanly = connection.chunks()
    assert not ended_cleanly
    assert json.loads(chunks[-1].removeprefix(b"data: "))["error"]["type"] == "server_error"


async def lines_of(count, size=10):
    for _ in range(count):
        yield b"x" * size + b"\n"


async def test_the_buffer_keeps_the_newest_of_what_was_read():
    answer = HeldAnswer("a" * 32, "", max_bytes=500)
    filling = asyncio.create_task(answer.fill(lines_of(100)))
    events = [event async for event in answer.read(0)]
    await filling
    assert len(events) == answer.num_events == 100
    assert answer.num_bytes <= 500
    assert [event async for event in answer.read(97)] == events[97:]
    with pytest.raises(RequestError, match="not held any more"):
        answer.check(0)


async def test_a_full_buffer_waits_for_a_reader():
    answer = HeldAnswer("a" * 32, "", max_bytes=500)
    filling = asyncio.create_task(answer.fill(lines_of(100)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not answer.is_over
    assert answer.num_bytes <= 500
    assert len([event async for event in answer.read(0)]) == 100
    await filling
