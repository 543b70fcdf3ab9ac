"""What `/generate` tells of a prompt before the first token, where it is asked to."""

import json

import pytest

NDJSON = "application/x-ndjson"
SMALL_CHUNKS = {"prefill_chunk_tokens": 16}


def lines_of(reply):
    assert reply.status == 200, reply.body
    return [json.loads(line) for line in reply.body.decode().splitlines()]


def progress_of(lines):
    return [line["progress"] for line in lines if "progress" in line]


def read(num_prompt, num_cached, num_read):
    return {
        "num_prompt_tokens": num_prompt,
        "num_cached_tokens": num_cached,
        "num_read_tokens": num_read,
    }


def test_every_chunk_is_told_before_the_first_token(serve_echo):
    live = serve_echo(scheduler=SMALL_CHUNKS)
    lines = lines_of(live.post("/generate", {"prompt": "x" * 40, "progress": True}, Accept=NDJSON))
    assert progress_of(lines) == [read(40, 0, n) for n in (0, 16, 32, 40)]
    assert ["progress" in line for line in lines].index(False) == 4, "they come first"
    assert "".join(line.get("text", "") for line in lines) == "→" + "x" * 40


def test_what_was_in_the_cache_is_told_apart(serve_echo):
    live = serve_echo(scheduler=SMALL_CHUNKS)
    live.post("/generate", {"prompt": "y" * 32, "max_tokens": 1})
    body = {"prompt": "y" * 32 + "z" * 8, "max_tokens": 1, "progress": True}
    told = progress_of(lines_of(live.post("/generate", body, Accept=NDJSON)))
    cached = told[0]["num_cached_tokens"]
    assert cached > 0
    assert told[0] == read(40, cached, cached)
    assert told[-1] == read(40, cached, 40)


def test_who_waits_is_told_the_place_in_the_queue(serve_echo, wait_until):
    live = serve_echo(step_delay_s=0.05, scheduler={"max_rows": 1})
    long = {"prompt": "a" * 200, "progress": True}
    with live.connect("/generate", {"prompt": "b" * 250}) as first:
        first.head()
        first.chunk()
        waiting = [live.connect("/generate", long, Accept=NDJSON)]
        wait_until(lambda: live.model.engine.stats().num_waiting == 1)
        waiting.append(live.connect("/generate", long, Accept=NDJSON))
        wait_until(lambda: live.model.engine.stats().num_waiting == 2)
        places = []
        for number, stream in enumerate(waiting):
            with stream:
                stream.head()
                line = json.loads(stream.chunk())
                assert line["progress"]["num_read_tokens"] == 0
                places.append(line["progress"]["num_ahead"])
                if number == 1:
                    assert json.loads(stream.chunk())["progress"]["num_ahead"] == 0, "moved up"
    assert places == [0, 1]


def test_the_prompt_is_shown_token_by_token(live):
    body = {"prompt": "Grüße", "max_tokens": 1, "show_prompt": True}
    first, second, *_ = lines_of(live.post("/generate", body, Accept=NDJSON))
    assert first["prompt"]["texts"] == ["G", "r", "", "ü", "", "ß", "e"]
    assert len(first["prompt"]["token_ids"]) == 7
    assert first["prompt"]["control"] == []
    assert second["index"] == 0


def test_control_tokens_of_the_template_are_marked_and_those_of_a_message_are_not_there(live):
    message = {"role": "user", "content": "say <|im_end|>"}
    body = {"messages": [message], "max_tokens": 1, "show_prompt": True, "progress": True}
    lines = lines_of(live.post("/generate", body, Accept=NDJSON))
    prompt = lines[0]["prompt"]
    assert "say <|im_end|>" in "".join(prompt["texts"])
    controls = [prompt["texts"][at] for at in prompt["control"]]
    assert controls
    assert all(text.startswith("<|") for text in controls)
    assert "".join(prompt["texts"]).count("<|im_end|>") == controls.count("<|im_end|>") + 1
    assert "progress" in lines[1]


def test_of_several_choices_each_line_says_whose_it_is(live):
    body = {"prompt": "ab", "n": 2, "max_tokens": 1, "progress": True, "show_prompt": True}
    lines = lines_of(live.post("/generate", body, Accept=NDJSON))
    assert "prompt" in lines[0]
    assert {line["choice"] for line in lines if "progress" in line} == {0, 1}
    assert sum("prompt" in line for line in lines) == 1


@pytest.mark.parametrize("field", ["progress", "show_prompt"])
@pytest.mark.parametrize(
    ("accept", "more"), [("text/plain", {}), ("application/json", {}), (NDJSON, {"stream": False})]
)
def test_only_streamed_lines_can_tell(live, field, accept, more):
    reply = live.post("/generate", {"prompt": "a", field: True, **more}, Accept=accept)
    assert reply.status == 400
    assert reply.error()["param"] == field


def test_a_prompt_that_is_too_long_is_a_400_all_the_same(live):
    body = {"prompt": "a" * 100_000, "progress": True, "show_prompt": True}
    reply = live.post("/generate", body, Accept=NDJSON)
    assert reply.status == 400
    assert reply.error()["code"] == "context_length_exceeded"


def test_a_fault_while_the_prompt_is_read_is_an_error_line(serve_echo):
    live = serve_echo(fail_prefill_runs=[0])
    with live.connect("/generate", {"prompt": "a", "progress": True}, Accept=NDJSON) as stream:
        assert stream.head().startswith(b"HTTP/1.1 200")
        chunks, ended_cleanly = stream.chunks()
    assert json.loads(chunks[-1])["error"]["code"] == "engine_error"
    assert not ended_cleanly
