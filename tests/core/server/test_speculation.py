"""What clients get is the same with drafts as without, however they ask and whenever they leave."""

from __future__ import annotations

import json

import pytest

from .conftest import wait_until

CHAT = "/v1/chat/completions"
PATHS = ("/generate", "/v1/completions", CHAT)
PROMPT = "the cat sat on the mat and the dog sat on the log; the cat sat on the dog"


@pytest.fixture
def plain(serve_echo):
    return serve_echo()


@pytest.fixture
def drafting(serve_echo):
    return serve_echo(speculation="on")


def body_of(path, prompt, **given):
    asked = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {}
    return {"temperature": 0, "max_tokens": 120, **(asked or {"prompt": prompt}), **given}


def said(live, path, prompt=PROMPT, **given):
    """All of an answer but ids and times: of a stream its text in one piece."""
    accept = "application/x-ndjson" if given.get("stream") else "application/json"
    reply = live.post(path, body_of(path, prompt, **given), Accept=accept)
    assert reply.status == 200, reply.body
    if not given.get("stream"):
        return without_times(reply.json())
    pieces = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n") if line]
    frames = [json.loads(piece) for piece in pieces if piece != b"[DONE]"]
    assert all("error" not in frame for frame in frames)
    return [without_times(frame) for frame in frames]


def without_times(frame):
    """Nor with what of the prompt was in the cache, which depends on who came before."""
    if isinstance(frame, list):
        return [without_times(part) for part in frame]
    if not isinstance(frame, dict):
        return frame
    passing = ("id", "created", "timings", "request_id", "prompt_tokens_details")
    passing += ("num_cached_tokens",)
    return {name: without_times(part) for name, part in frame.items() if name not in passing}


def drafts(live):
    stats = live.model.engine.stats()
    return stats.num_drafted_tokens, stats.num_accepted_tokens


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_answer_comes_frame_by_frame_as_without(plain, drafting, path, stream):
    assert said(drafting, path, stream=stream) == said(plain, path, stream=stream)
    assert drafts(plain) == (0, 0)
    num_drafted, num_accepted = drafts(drafting)
    assert num_drafted >= num_accepted > 20


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("stop", ["dog sat", " log; the", "sat on the dog"])
def test_a_stop_string_within_a_draft_cuts_exactly(plain, drafting, path, stream, stop):
    given = {"stream": stream, "stop": stop}
    found = said(drafting, path, **given)
    assert found == said(plain, path, **given)
    assert stop not in json.dumps(found)
    assert '"stop"' in json.dumps(found)
    assert drafts(drafting)[1] > 5
    wait_until(lambda: drafting.model.engine.stats().num_running == 0)


@pytest.mark.parametrize("path", PATHS)
def test_several_choices_are_those_of_plain_decoding(plain, drafting, path):
    """Sampled ones too: the same seeds draw from the same logits."""
    for given in ({"temperature": 0}, {"temperature": 0.9, "seed": 3}):
        found = said(drafting, path, n=3, **given)
        assert found == said(plain, path, n=3, **given)
        assert len(found["choices"]) == 3
    assert drafts(drafting)[1] > 5


def test_scores_are_those_of_plain_decoding(plain, drafting):
    given = {"logprobs": 2, "echo": True}
    found = said(drafting, "/v1/completions", **given)
    assert found == said(plain, "/v1/completions", **given)
    assert drafts(drafting)[1] > 5


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_prediction_changes_what_is_guessed_and_nothing_else(plain, drafting, stream):
    said_so = "→user\nabcdefghijklmnopqrstuvwxyz"
    answers, usages = [], []
    for live, content in ((plain, said_so), (drafting, said_so), (drafting, "x" * 40)):
        prediction = {"type": "content", "content": [{"type": "text", "text": content}]}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        found = said(live, CHAT, said_so[6:], prediction=prediction, stream=stream, **options)
        last = found[-1] if stream else found
        usages.append(last.pop("usage")["completion_tokens_details"])
        answers.append(found)
    assert answers[0] == answers[1] == answers[2]
    assert drafts(drafting)[1] > len(said_so)
    for usage in usages[:2]:  # a control token comes in between, and two find the place again
        assert usage["accepted_prediction_tokens"] == len(said_so) - 2
        assert usage["rejected_prediction_tokens"] == 2
    assert usages[2]["rejected_prediction_tokens"] == 40


def test_a_prediction_is_what_the_first_guesses_come_from(drafting):
    for content, is_guessed in (("never", False), ("→user", True)):
        before, _ = drafts(drafting)
        prediction = {"type": "content", "content": content}
        said(drafting, CHAT, "abc", prediction=prediction, max_tokens=3)
        assert (drafts(drafting)[0] > before) is is_guessed


@pytest.mark.parametrize("wrong", ["a", 7, {"type": "text", "content": "a"}, {"type": "content"}])
def test_a_wrong_prediction_is_refused(plain, wrong):
    reply = plain.post(CHAT, body_of(CHAT, "a", prediction=wrong))
    assert (reply.status, reply.error()["param"]) == (400, "prediction")


def test_drafts_go_on_behind_a_prefix_that_was_kept(plain, drafting):
    for prompt in (PROMPT, f"{PROMPT} and so on", PROMPT, f"{PROMPT}; the cat sat on the mat"):
        assert said(drafting, "/v1/completions", prompt) == said(plain, "/v1/completions", prompt)
    stats = drafting.model.engine.stats()
    assert stats.num_cached_tokens > 2 * len(PROMPT)
    assert stats.num_accepted_tokens > 2 * len(PROMPT)


@pytest.mark.parametrize("path", PATHS)
def test_who_leaves_within_drafts_frees_the_row_and_nobody_notices(plain, serve_echo, path):
    drafting = serve_echo(speculation="on", prefill_delay_s_per_token=0.002)
    expected = said(plain, path)
    for number in range(3):
        body = body_of(path, f"{PROMPT} {number} " * 4, stream=True, max_tokens=400)
        with drafting.connect(path, body, Accept="application/x-ndjson") as gone:
            assert b"200 OK" in gone.head()
            for _ in range(number + 1):
                assert gone.chunk()
        assert said(drafting, path) == expected
    wait_until(lambda: drafting.model.engine.stats().num_running == 0)
    stats = drafting.model.engine.stats()
    assert (stats.num_aborted, stats.num_failed) == (3, 0)
    drafting.model.engine.check()
