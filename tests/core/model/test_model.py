from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import twostroke
from twostroke.backends.discovery import Plugins
from twostroke.bundle.manifest import GenerationDefaults
from twostroke.errors import ContextLengthError, EngineError, RequestError, UnavailableError
from twostroke.model import Model, TextEvent
from twostroke.testing import make_echo_bundle
from twostroke.timings import Preparation
from twostroke.types import FinishedEvent, FinishReason, Request

from .conftest import OpenModel

USER = [{"role": "user", "content": "hi"}]


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.002)


def is_idle(model: Model) -> bool:
    stats = model.engine.stats()
    return stats.num_running == stats.num_waiting == 0


def test_tokens_one_by_one(model: Model) -> None:
    answer = model.generate("héllo 😀")
    tokens = list(answer)
    assert "".join(map(str, tokens)) == answer.text == "→héllo 😀"
    assert [token.index for token in tokens] == list(range(12))
    assert answer.completion is not None
    assert answer.completion.token_ids == tuple(token.token_id for token in tokens)
    assert answer.completion.finish_reason is FinishReason.STOP
    assert answer.completion.num_completion_tokens == 13  # the end counts


def test_a_whole_answer(model: Model) -> None:
    completion = model.complete("abc", max_tokens=2)
    assert str(completion) == "→a"
    assert completion.finish_reason == "length"
    assert (completion.num_prompt_tokens, completion.num_completion_tokens) == (3, 2)
    assert completion.timings.ttft_ms is not None
    assert completion.timings.tokenise_ms is not None


def test_prompts_may_be_ids_or_messages(model: Model) -> None:
    ids = model.encode("abc")
    assert model.complete(ids).text == model.complete(list(ids)).text == "→abc"
    assert model.complete(USER).text == "→user\nhi"  # up to the first <|im_end|>


@pytest.mark.parametrize("prompt", ["", [], [10_000], [True], [[]], [USER[0], 5], None, 5, b"x"])
def test_bad_prompts_are_refused(model: Model, prompt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        model.generate(prompt)
    assert caught.value.status == 400
    assert caught.value.param


def test_an_over_long_prompt_gets_both_numbers(model: Model) -> None:
    with pytest.raises(ContextLengthError, match=r"600.*512|512.*600"):
        model.generate("x" * 600)


def test_a_stop_string_over_tokens(model: Model) -> None:
    full = model.complete("one two three")
    cut = model.complete("one two three", stop="o th")
    assert cut.text == "→one tw"
    assert cut.finish_reason == "stop"
    assert full.text.startswith(cut.text)
    assert cut.num_completion_tokens == len("→one two th")
    until(lambda: is_idle(model))


def test_zero_tokens(model: Model) -> None:
    completion = model.complete("abc", max_tokens=0)
    assert (completion.text, completion.num_completion_tokens) == ("", 0)


async def test_streams(model: Model) -> None:
    answer = model.stream("abc")
    assert [str(token) async for token in answer] == ["→", "a", "b", "c"]
    assert answer.completion is not None
    assert answer.completion.num_prompt_tokens == 3
    assert (await model.stream("abc").complete()).text == "→abc"


async def test_a_stream_refuses_before_its_first_token(model: Model) -> None:
    with pytest.raises(RequestError, match="temperature"):
        model.stream("abc", temperature=-1)
    with pytest.raises(RequestError, match="empty"):
        await anext(model.stream([]))


async def test_many_at_once_answer_as_alone(model: Model) -> None:
    prompts = ["x" * length + "y" for length in range(1, 40, 3)]
    answers = await asyncio.gather(*(model.stream(prompt).complete() for prompt in prompts))
    assert [answer.text for answer in answers] == [f"→{prompt}" for prompt in prompts]


async def test_the_event_loop_is_free_while_a_prompt_is_tokenised(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    encode = model.encode_timed

    def noting(prompt: Any, tools: Any, variables: Any) -> Any:
        threads.append(threading.current_thread())
        return encode(prompt, tools, variables)

    monkeypatch.setattr(model, "encode_timed", noting)
    await model.stream("abc").complete()
    assert threads
    assert threads[0] is not threading.current_thread()


async def test_events_for_a_surface(model: Model) -> None:
    request = Request("mine", model.encode("ab"), model.sampling(stop="b"))
    prepared = Preparation(tokenise_ms=1.5)
    asked = model.events([request], arrived_at=time.monotonic(), prepared=prepared)
    events = [event async for _, event in asked]
    assert [event.text for event in events if isinstance(event, TextEvent)] == ["→", "a", ""]
    end = events[-1]
    assert isinstance(end, FinishedEvent)
    assert (end.reason, end.num_completion_tokens) == (FinishReason.STOP, 3)
    assert end.timings.tokenise_ms == 1.5


async def test_closing_the_events_aborts(open_model: OpenModel) -> None:
    model = open_model(options={"step_delay_s": 0.002})
    events = model.events([Request("mine", model.encode("a" * 200), model.sampling())])
    index, event = await anext(events)
    assert index == 0
    assert isinstance(event, TextEvent)
    await events.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    await asyncio.to_thread(until, lambda: is_idle(model))
    assert model.engine.stats().num_aborted == 1


def test_leaving_a_loop_ends_the_sequence(open_model: OpenModel) -> None:
    model = open_model(options={"step_delay_s": 0.002})
    for _ in model.generate("a" * 200):
        break
    gc.collect()
    until(lambda: is_idle(model))
    assert model.engine.stats().num_aborted == 1


def test_closing_an_answer_ends_it(open_model: OpenModel) -> None:
    model = open_model(options={"step_delay_s": 0.002})
    with model.generate("a" * 200) as answer:
        first = next(answer)
    assert str(first) == "→"
    assert answer.complete().finish_reason is FinishReason.ABORTED
    until(lambda: is_idle(model))


async def test_cancelling_a_stream_ends_the_sequence(open_model: OpenModel) -> None:
    model = open_model(options={"step_delay_s": 0.002})
    task = asyncio.ensure_future(model.stream("a" * 200).complete())
    await asyncio.to_thread(until, lambda: model.engine.stats().num_running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(until, lambda: is_idle(model))
    assert model.engine.stats().num_aborted == 1


async def test_a_closed_stream_has_no_more(model: Model) -> None:
    async with model.stream("abc") as answer:
        await anext(answer)
    assert [token async for token in answer] == []


def test_a_fault_is_raised_and_the_model_lives(open_model: OpenModel) -> None:
    model = open_model(options={"fail_decode_runs": [1]})
    with pytest.raises(EngineError):
        model.complete("abc")
    assert model.complete("abc").text == "→abc"


def test_a_full_queue_refuses(open_model: OpenModel) -> None:
    model = open_model(options={"step_delay_s": 0.01}, max_rows=1, max_queue=0)
    running = model.generate("a" * 100)
    next(running)
    with pytest.raises(UnavailableError):
        model.generate("b")
    running.close()


def test_a_closed_model_refuses(open_model: OpenModel) -> None:
    model = open_model()
    model.close()
    model.close()
    with pytest.raises(UnavailableError, match="This model is closed"):
        model.generate("a")
    with pytest.raises(UnavailableError, match="This model is closed"):
        model.stream("a")


async def test_a_stream_that_starts_after_the_close_says_why(open_model: OpenModel) -> None:
    model = open_model()
    answer = model.stream("a")
    model.close()
    with pytest.raises(UnavailableError, match="This model is closed"):
        await anext(answer)


def test_a_model_shows_what_it_is(open_model: OpenModel) -> None:
    model = open_model()
    assert repr(model) == "<twostroke.Model 'echo': fp32 on echo, context 512 tokens>"
    model.close()
    assert repr(model).endswith("tokens, closed>")


def test_closing_a_model_ends_its_answers(open_model: OpenModel) -> None:
    model = open_model(options={"step_delay_s": 0.002})
    answer = model.generate("a" * 200)
    next(answer)
    model.close()
    assert answer.complete().finish_reason is FinishReason.ABORTED


def test_status_is_plain_data(model: Model) -> None:
    import json

    status = json.loads(json.dumps(model.status()))
    assert status["name"] == "echo"
    assert status["placement"]["decode"]["backend"] == "echo"
    assert status["placement"]["prefill"]["nodes"] == {"echo": 1}
    assert status["fallback"] is None
    assert status["memory"]["weights_bytes"] > 0
    assert status["memory"]["kv_bytes"] > 0
    assert status["load"]["num_rows"] == 8


def test_a_model_without_a_template_completes_and_warns(
    open_model: OpenModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_echo_bundle(tmp_path / "plain", name="plain", chat_template=None)
    model = open_model(folder)
    assert "no chat template" in caplog.text
    assert model.complete("ab").text == "→ab"
    with pytest.raises(RequestError, match="no chat template"):
        model.complete(USER)


def test_open_is_the_models_open(plugins: Plugins, echo_path: Path) -> None:
    with twostroke.open(echo_path, backend="echo", plugins=plugins, max_rows=2) as model:
        assert isinstance(model, Model)
        assert model.complete("a").text == "→a"


def test_the_public_names_are_there() -> None:
    assert set(twostroke.__all__) <= set(dir(twostroke))
    for name in twostroke.__all__:
        assert getattr(twostroke, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = twostroke.Nothing


def test_configured_sampling_goes_before_the_models_and_behind_the_requests(
    open_model: OpenModel,
) -> None:
    model = open_model(sampling={"top_p": 0.5, "max_tokens": 10**6})
    assert model.bundle.manifest.generation.temperature == 0.0
    silent, spoken = model.sampling(), model.sampling(top_p=0.9, max_tokens=None)
    assert (silent.temperature, silent.top_p) == (0.0, 0.5)
    assert silent.max_tokens == model.context_tokens
    assert (spoken.top_p, spoken.max_tokens) == (0.9, model.context_tokens)


def test_a_model_that_recommends_nothing_gets_a_calm_temperature(
    plugins: Plugins, tmp_path: Path
) -> None:
    bundle = make_echo_bundle(tmp_path / "silent", generation=GenerationDefaults(top_p=0.9))
    with Model.open(bundle, backend="echo", plugins=plugins) as model:
        assert (model.sampling().temperature, model.sampling().top_p) == (0.7, 0.9)
        assert model.sampling(temperature=1.0).temperature == 1.0
