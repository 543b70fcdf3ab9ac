"""Real graphs whose logits are reduced on a device: no answer changes, and few bytes come back."""

from __future__ import annotations

import pytest

from twostroke.backends.ort import CPU_PROVIDER, load_session
from twostroke.backends.ort.reduction import with_reduced_logits
from twostroke.backends.reduced import INVERSE_TEMPERATURE, REDUCED_OUTPUTS
from twostroke.bundle import open_bundle
from twostroke.engine import EngineLimits, build_engine
from twostroke.types import Request, SamplingParams, Stroke

from .test_onnx_engine import serve
from .test_onnx_resizing import DeviceBackend, open_backend

onnx_bundles = pytest.importorskip("twostroke.testing.onnx_bundles")


class ReducingBackend(DeviceBackend):
    """As a GPU's: logits stay on the device."""

    def open_decode_session(self, graph):
        content = with_reduced_logits(graph)
        assert content is not None
        options = self.session_options()
        return load_session(graph, CPU_PROVIDER, {}, options, content=content)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    model = onnx_bundles.TinyModel()
    return onnx_bundles.make_onnx_bundle(tmp_path_factory.mktemp("tiny") / "bundle", model)


MIXES = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 0.9, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.2, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 1.0, "repetition_penalty": 1.4},
    {"temperature": 0.0, "logit_bias": {9: 3.0}, "logprobs": 5},
    {"temperature": 1.0, "logprobs": 0},
]


def requests(vocab_size):
    return [
        Request(
            f"r{number}",
            tuple((7 * number + position) % vocab_size for position in range(3 + 5 * number)),
            SamplingParams(seed=number, max_tokens=20, ignore_eos=True, **mix),
        )
        for number, mix in enumerate(MIXES)
    ]


def answers(tiny, kind, recorder, **limits):
    backend = open_backend(kind)
    given = EngineLimits(max_rows=len(MIXES), kv_budget_bytes=2**28, **limits)
    engine = build_engine(open_bundle(tiny), backend, backend, given)
    assert engine._runner.reduces_logits is (kind is ReducingBackend)
    sinks = []

    def recording():
        sinks.append(recorder())
        return sinks[-1]

    found = [serve(engine, requests(engine.vocab_size), recording)]
    found += [serve(engine, [each], recording)[0] for each in requests(engine.vocab_size)]
    logprobs = [[event.logprob for event in sink.events[:-1]] for sink in sinks]
    engine.stop()
    backend.close()
    return found, logprobs


def test_answers_and_logprobs_are_those_of_whole_logits(tiny, recorder):
    expected = answers(tiny, DeviceBackend, recorder)
    assert answers(tiny, ReducingBackend, recorder) == expected
    assert len({tuple(ids) for ids in expected[0][0]}) == len(MIXES)


def test_drafts_are_verified_with_whole_logits(tiny, recorder):
    expected = answers(tiny, DeviceBackend, recorder, speculation="on")
    assert answers(tiny, ReducingBackend, recorder, speculation="on") == expected


def test_greedy_steps_bring_no_row_to_the_host(tiny, recorder):
    backend = open_backend(ReducingBackend)
    engine = build_engine(open_bundle(tiny), backend, backend, EngineLimits(kv_budget_bytes=2**28))
    plain = Request("r", (5, 6, 7), SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
    before = backend.memory.num_copies_out
    serve(engine, [plain], recorder)
    assert backend.memory.num_copies_out == before
    engine.stop()
    backend.close()


def test_the_graph_is_the_same_beside_what_is_added(tiny):
    plain = open_backend(DeviceBackend).open_session(tiny / "decode.onnx", Stroke.DECODE)
    session = open_backend(ReducingBackend).open_decode_session(tiny / "decode.onnx")
    assert session.inputs.keys() - plain.inputs.keys() == {INVERSE_TEMPERATURE}
    assert session.outputs.keys() - plain.outputs.keys() == set(REDUCED_OUTPUTS)
    assert session.outputs["block_weights"].shape == ("batch", 1, 2)


def test_graphs_that_answer_several_positions_are_left_alone(tiny):
    assert with_reduced_logits(tiny / "prefill.onnx") is None
