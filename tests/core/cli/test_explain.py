"""`twostroke generate --explain`."""

from __future__ import annotations

import json

from twostroke.cli.explain import explain
from twostroke.model import Completion
from twostroke.timings import (
    ChunkSpan,
    DecodeTimings,
    PrefillTimings,
    Roofline,
    StrokeRoofline,
    Timings,
)
from twostroke.types import FinishReason

ECHO = ("--set", "models.0.backend=echo", "--set", "models.0.speculation.mode=off")
MEMORY = {
    "weights_bytes": 200_000_000,
    "kv_now_bytes": 30_000_000,
    "kv_bytes": 400_000_000,
    "kv_bytes_per_token": 46_080,
    "workspace_bytes": 117_000_000,
}
TIMINGS = Timings(
    tokenise_ms=2.0,
    queued_ms=0.0,
    prefill_ms=500.0,
    other_ms=0.5,
    ttft_ms=502.5,
    decode_ms=480.0,
    decode_tokens_per_s=100.0,
    detokenise_ms=1.0,
    blocked_ms=3.0,
    total_ms=1000.0,
    prefill=PrefillTimings(
        100,
        300,
        2,
        450.0,
        600.0,
        (ChunkSpan(100, 256, 1, 2.0, 300.0), ChunkSpan(356, 44, 1, 4, 150)),
    ),
    decode=DecodeTimings(48, 400.0, 2.5, 4, 9.5, 20.0, 12, 9),
    roofline=Roofline(
        StrokeRoofline(4e8, 4e8, 9e10, 9e8, 2e11, 0.039, 0.2, "compute"),
        StrokeRoofline(9.6e9, 4.8e9, 2e10, 2.4e10, 5e10, 0.62, 0.05, "bandwidth"),
        "measured while the machine was busy",
    ),
)


def lines_of(timings: Timings, memory: dict[str, int] = MEMORY) -> list[str]:
    completion = Completion("x", FinishReason.LENGTH, 400, 49, timings)
    return list(explain([completion], {"memory": memory}))


def test_the_cycle_as_a_table():
    lines = lines_of(TIMINGS)
    table = {line.split("  ")[0]: line for line in lines if not line.startswith(" ")}
    assert list(table) == [
        "tokenise", "queued", "prefill", "other", "first token", "decode", "detokenise",
        "blocked", "total", "memory", "note: measured while the machine was busy",
    ]  # fmt: skip
    assert "500.0 ms" in table["prefill"]
    assert table["prefill"].endswith("300 tokens in 2 chunks, 100 cached, 600 tokens/s")
    assert table["decode"].endswith("48 steps, 100.0 tokens/s, 9.5 ms a token (p50), 20.0 at most")
    assert table["total"].endswith("400 prompt tokens, 49 tokens (length)")
    assert table["memory"].endswith(
        "200 MB weights, 30 MB of 400 MB KV cache (46.1 kB a token), up to 117 MB workspace"
    )
    told = [line.strip() for line in lines if line.startswith(" ")]
    assert told == [
        "each 300, 150 ms",
        "4 % of bandwidth (0.9 GB/s), 20 % of peak (200 GOP/s): bound by compute",
        "shared by 2.5 sequences on average, 4 at most",
        "9 of 12 drafted tokens accepted",
        "62 % of bandwidth (24 GB/s), 5 % of peak (50 GOP/s): bound by bandwidth",
        "100 MB read a step",
    ]


def test_a_spare_row_is_no_used_cache():
    memory = {**MEMORY, "kv_spare_bytes": 10_000_000}
    (line,) = lines_of(Timings(), memory)
    assert "20 MB of 400 MB KV cache (46.1 kB a token, 10 MB in a spare row), up to" in line


def test_a_bar_is_as_long_as_its_stage():
    lines = {line.split("  ")[0]: line for line in lines_of(TIMINGS)}
    assert lines["total"].count("█") == 20
    assert lines["prefill"].count("█") == 10
    assert lines["queued"].count("█") == 0


def test_an_answer_of_which_nothing_is_known_has_its_memory_only():
    lines = lines_of(Timings())
    assert [line.split()[0] for line in lines] == ["memory"]


def test_the_command_tells_it_on_stderr_or_in_the_object(twostroke, echo_bundle):
    arguments = ("generate", "--model", echo_bundle, *ECHO, "--explain")
    done = twostroke(*arguments, "abc")
    assert (done.returncode, done.stdout) == (0, "→abc\n")
    for name in ("tokenise", "prefill", "decode", "total", "memory"):
        assert f"\n{name} " in f"\n{done.stderr}"
    assert "no ONNX files" in done.stderr
    done = twostroke(*arguments, "--json", "abc")
    answer = json.loads(done.stdout)
    assert done.stderr == ""
    assert answer["timings"]["decode"]["num_steps"] == 4
    assert answer["memory"]["kv_now_bytes"] <= answer["memory"]["kv_bytes"]


def test_several_choices_are_explained_together_and_each(twostroke, echo_bundle):
    arguments = ("generate", "--model", echo_bundle, *ECHO, "--explain", "--choices", 2)
    done = twostroke(*arguments, "abc")
    assert done.stdout == "--- choice 0 ---\n→abc\n--- choice 1 ---\n→abc\n"
    assert "3 prompt tokens, 10 tokens (stop, stop)" in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("choice ")]
    assert [line.split(", ")[0] for line in lines] == [
        "choice 0    5 tokens (stop)",
        "choice 1    5 tokens (stop)",
    ]
    answer = json.loads(twostroke(*arguments, "--json", "abc").stdout)
    assert [choice["text"] for choice in answer["choices"]] == ["→abc", "→abc"]
    assert (answer["prompt_tokens"], answer["completion_tokens"]) == (3, 10)
    assert answer["timings"]["decode_tokens_per_s"] > 0
    assert answer["timings"]["decode"]["batch_size_max"] == 2, "side by side"
    assert "memory" in answer
    wrong = twostroke(*arguments[:-1], 0, "abc")
    assert (wrong.returncode != 0, "from 1 to 128" in wrong.stderr) == (True, True)
