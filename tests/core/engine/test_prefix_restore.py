"""What had to leave the KV cache comes back from the store, and after a restart."""

from __future__ import annotations

import pytest

from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits
from twostroke.testing import make_echo_bundle
from twostroke.testing.bundles import SEPARATOR_ID
from twostroke.types import Request, SamplingParams, Stroke

from .conftest import PLACEMENTS

PROMPTS = [tuple(range(first, first + 70)) for first in (10, 90, 170)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restore") / "echo"
    return make_echo_bundle(folder, context_tokens=256, dialects=("fused", "standard"))


class Asking:
    """One row, so that every prompt takes the place of the one before."""

    def __init__(self, make_engine, recorder, bundle, placement, **limits):
        limits = EngineLimits(
            max_rows=1,
            prefill_chunk_tokens=64,
            kv_budget_bytes=2**20,
            **{"prefix_store_bytes": 2**22, **limits},
        )
        self.engine = make_engine(bundle, started=False, limits=limits, **placement).engine
        self.recorder = recorder
        self.num_requests = 0

    def ask(self, prompt, **facts) -> int:
        """Checks the answer; the tokens that were cached."""
        self.num_requests += 1
        sampling = SamplingParams(temperature=0.0)
        sink = self.recorder()
        request = Request(f"r{self.num_requests}", tuple(prompt), sampling, **facts)
        self.engine.submit(request, sink, arrived_at=0.0)
        while not sink.ends:
            self.engine.run_step()
            self.engine.check()
        assert sink.token_ids == [SEPARATOR_ID, *prompt]
        return sink.ends[0].num_cached_tokens


@pytest.fixture(params=PLACEMENTS.values(), ids=PLACEMENTS)
def placement(request):
    return request.param


def test_a_prompt_comes_back_from_memory(make_engine, recorder, bundle, placement):
    asking = Asking(make_engine, recorder, bundle, placement)
    assert [asking.ask(prompt) for prompt in PROMPTS] == [0, 0, 0]
    assert asking.ask([*PROMPTS[0], 5, 6]) == 70
    assert asking.ask([*PROMPTS[1][:65], 5, 6]) == 65
    stats = asking.engine.stats()
    assert stats.num_restored_tokens == 135
    assert stats.prefix_store_bytes > 0


def test_scopes_share_no_stored_prefix(make_engine, recorder, bundle):
    asking = Asking(make_engine, recorder, bundle, {})
    asking.ask(PROMPTS[0], scope="a")
    asking.ask(PROMPTS[1], scope="a")
    assert asking.ask(PROMPTS[0], scope="b") == 0
    assert asking.ask(PROMPTS[0], scope="a") == 69


def test_prompts_come_back_after_a_restart(make_engine, recorder, bundle, placement, tmp_path):
    first = Asking(make_engine, recorder, bundle, placement, prefix_store_path=tmp_path / "store")
    for prompt in PROMPTS:
        first.ask(prompt)
    first.engine.stop()
    second = Asking(make_engine, recorder, bundle, placement, prefix_store_path=tmp_path / "store")
    assert [second.ask([*prompt, 5]) for prompt in PROMPTS] == [70, 70, 70]


def test_a_damaged_file_costs_time_and_nothing_else(
    make_engine, recorder, bundle, tmp_path, caplog
):
    folder = tmp_path / "store"
    first = Asking(make_engine, recorder, bundle, {}, prefix_store_path=folder)
    first.ask(PROMPTS[0])
    first.engine.stop()
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    second = Asking(make_engine, recorder, bundle, {}, prefix_store_path=folder)
    assert second.ask(PROMPTS[0]) == 0
    assert "its checksum is wrong" in caplog.text


def test_another_model_in_the_folder_is_not_read(make_engine, recorder, bundle, tmp_path):
    folder = tmp_path / "store"
    first = Asking(make_engine, recorder, bundle, {}, prefix_store_path=folder)
    first.ask(PROMPTS[0])
    first.engine.stop()
    other = make_echo_bundle(tmp_path / "other", context_tokens=255)
    assert open_bundle(other).manifest.manifest_sha256 is not None
    second = Asking(make_engine, recorder, other, {}, prefix_store_path=folder)
    assert second.ask(PROMPTS[0]) == 0


def test_one_that_is_stored_is_no_reason_to_compute_it_twice_at_once(make_engine, recorder, bundle):
    limits = EngineLimits(
        max_rows=2, prefill_chunk_tokens=64, kv_budget_bytes=2**20, prefix_store_bytes=2**22
    )
    engine = make_engine(bundle, started=False, limits=limits).engine
    computed = []

    class Listener:
        def ran(self, facts):
            if facts.stroke is Stroke.PREFILL:
                computed.append(facts.num_new_tokens)

        def ended(self, end):
            pass

        def told(self, *facts):
            pass

    engine.observers.add(Listener())
    sampling = SamplingParams(temperature=0.0)

    def ask(*prompts):
        sinks = [recorder() for _ in prompts]
        for number, (prompt, sink) in enumerate(zip(prompts, sinks, strict=True)):
            engine.submit(Request(f"r{number}", prompt, sampling), sink, arrived_at=0.0)
        while not all(sink.ends for sink in sinks):
            engine.run_step()
            engine.check()
        assert [s.token_ids for s in sinks] == [[SEPARATOR_ID, *p] for p in prompts]

    for prompt in PROMPTS:
        ask(prompt)
    computed.clear()
    ask((*PROMPTS[0], 5), (*PROMPTS[0], 6))
    assert computed == [1, 1]
