"""The command and its scenarios against live endpoints: what it counts, not how fast they are."""

import json

import pytest
from aiohttp import web

from twostroke.bench import scenarios
from twostroke.bench.client import Client, Target
from twostroke.bench.run import run
from twostroke.bench.sample import Ask
from twostroke.cli import main


@pytest.mark.parametrize("api", ["generate", "openai"])
def test_a_mix_counts_what_the_server_made(echo_url, capsys, tmp_path, api):
    out = tmp_path / "out.json"
    flags = ["--prompt-tokens", "5", "--answer-tokens", "12", "--requests", "6", "--api", api]
    flags += ["--streams", "1,3", "--rate", "500", "--json", str(out)]
    assert main(["bench", "--url", echo_url() + "/", *flags]) == 0
    found = json.loads(out.read_text())
    (place,) = next(iter(found["places"].values()))
    assert place["placement"]["decode"]["nodes"]
    assert [each["load"] for each in found["results"]] == ["1 stream", "3 streams", "500 a second"]
    for each in found["results"]:
        values = each["values"]
        assert (values["requests"], values["errors"], values["tokens"]) == (6, 0, 6 * 12)
        assert values["prompt tokens"] > 6 * 5
        assert 0 < values["TTFT p50 ms"] <= values["latency p99 ms"]
        assert values["tokens/s"] > 0
    assert "500 a second" in capsys.readouterr().out


def test_two_endpoints_take_turns_and_are_compared(echo_url, capsys):
    urls = [echo_url(step_delay_s=0.001), echo_url(step_delay_s=0.02)]
    flags = ["--prompt-tokens", "2", "--answer-tokens", "6", "--requests", "4", "--streams", "2"]
    assert main(["bench", "--url", urls[0], "--url", urls[1], *flags]) == 0
    first, second, third, fourth, head, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{urls[0]}: echo: prefill fp32 on echo, echo (")  # the proof, first
    assert second.startswith(f"{urls[0]}: echo: decode fp32 on echo, echo (")
    assert (third[: len(urls[1])], fourth[: len(urls[1])]) == (urls[1], urls[1])
    assert head.endswith(f"{urls[1]} / {urls[0]}")
    (tokens,) = [line for line in lines if line.startswith("  tokens  ")]
    assert tokens.split() == ["tokens", "24", "24", "1.00"]


def test_what_fails_is_counted_and_told(echo_url, capsys):
    url = echo_url(max_queue=0, step_delay_s=0.05)
    flags = ["--prompt-tokens", "2", "--answer-tokens", "9", "--requests", "6", "--streams", "6"]
    assert main(["bench", "--url", url, "--warm-up", "0", *flags]) == 1
    told = capsys.readouterr()
    assert "first error of" in told.out
    assert "503" in told.err


def test_a_key_is_sent(echo_url, capsys):
    url = echo_url(keys=("secret",))
    flags = ["--prompt-tokens", "2", "--answer-tokens", "2", "--requests", "1", "--streams", "1"]
    assert main(["bench", "--url", url, *flags]) == 2
    assert "--key" in capsys.readouterr().err
    assert main(["bench", "--url", url, "--key", "secret", *flags]) == 0


def test_an_endpoint_that_is_not_there(capsys):
    assert main(["bench", "--url", "http://127.0.0.1:9"]) == 2
    assert "http://127.0.0.1:9/v1/models does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "--url"),
        (["--url", "http://127.0.0.1:9", "--prompt-tokens", "5"], "--answer-tokens"),
    ],
)
def test_flags_that_do_not_go_together(capsys, flags, told):
    assert main(["bench", *flags]) == 2
    assert told in capsys.readouterr().err


def on(url, scenario, **given):
    async def all_of(clients):
        return [await scenario(client, **given) for client in clients]

    (result,) = run([Target(url)], all_of, num_warm_ups=1)
    return result


def test_stall_counts_the_long_prompts_and_the_silence(echo_url):
    url = echo_url(step_delay_s=0.002)
    stall = scenarios.Stall(num_streams=2, num_long=2, long_tokens=400, quiet_s=0.1)
    result = on(url, scenarios.run_stall, stall=stall, seed=0)
    assert result.first_error is None
    assert result.values["long prompts"] == 2
    assert result.values["long prompt tokens"] > 2 * 400
    assert result.values["streams that ended"] == 0
    assert result.values["longest gap during ms"] > 0


def test_turns_bring_back_what_was_said(echo_url):
    turns = scenarios.Turns(num_chats=2, system_tokens=20, answer_tokens=8)
    result = on(echo_url(), scenarios.run_turns, turns=turns, seed=0)
    assert result.values["errors"] == 0
    assert result.values["second prompt tokens"] > result.values["first prompt tokens"] + 8
    assert result.values["second / first p50"] > 0


def test_health_is_asked_while_others_stream(echo_url):
    url = echo_url(step_delay_s=0.001)
    health = scenarios.Health(num_checks=10, num_streams=2, prompt_bytes=20_000, pause_s=0.01)
    result = on(url, scenarios.run_health, health=health, seed=0)
    assert (result.values["checks"], result.values["checks that failed"]) == (10, 0)
    assert 0 < result.values["health p50 ms"] <= result.values["health most ms"]


def test_a_stream_that_breaks_off_is_an_error(echo_url):
    url = echo_url(fail_decode_runs=[3])

    async def ask(clients):
        samples = [await client.ask(Ask("abcdef", 50)) for client in clients]
        assert [bool(sample.error) for sample in samples] == [True]
        assert 0 < len(samples[0].token_times) < 50
        return []

    run([Target(url)], ask, num_warm_ups=0)


async def test_a_server_that_tells_no_usage_is_counted_by_pieces(aiohttp_server_url):
    chunks = [b'data: {"choices":[{"text":"a"}]}\n\n', b"data: [DONE]\n\n"]
    url, session = await aiohttp_server_url([chunks[0], chunks[0], chunks[1]])
    client = Client(session, Target(url, api="openai", model="m"))
    sample = await client.ask(Ask("x", 2))
    assert (sample.text, sample.num_tokens, sample.error) == ("aa", 2, None)
    assert sample.num_prompt_tokens is None


@pytest.fixture
async def aiohttp_server_url():
    import aiohttp

    runners, sessions = [], []

    async def make(chunks):
        async def answer(request):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            return response

        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        sessions.append(aiohttp.ClientSession())
        port = site._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}", sessions[-1]

    yield make
    for session in sessions:
        await session.close()
    for runner in runners:
        await runner.cleanup()
