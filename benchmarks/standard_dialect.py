"""Does a compiler take the standard graphs whole, and what does that bring?

Opens the standard graphs of a bundle (made with `--dialect both`) on a plugin execution provider
and its fused graphs on the CPU provider, says which nodes landed where, compares the logits of one
prompt and its continuation, and times both in turns, so that whatever else the machine does befalls
each alike. Ratios within one run mean something, milliseconds of different runs do not.

    pip install onnxruntime==1.31.1 onnxruntime-ep-openvino==1.8.1 pydantic
    PYTHONPATH=core python benchmarks/standard_dialect.py BUNDLE [--tokens 512] [--rounds 5]
        [--module onnxruntime_ep_openvino] [--option KEY=VALUE] [--standard-on-cpu]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from twostroke.bundle import Bundle, contract, open_bundle
from twostroke.types import Stroke

NUM_STEPS = 8
Array = npt.NDArray[Any]


class Pair:
    """The two graphs of a dialect on one provider, and a cache for one sequence."""

    def __init__(self, bundle: Bundle, dialect: str, device: Any, options: dict[str, str]) -> None:
        self.is_standard = dialect == "standard"
        self.layers = bundle.manifest.kv_layers
        self.kv_dtype = bundle.manifest.kv_dtype
        before = anonymous_bytes()
        self.sessions = {s: session(bundle.graph(s, dialect), device, options) for s in Stroke}
        self.num_bytes = anonymous_bytes() - before
        self.cache: dict[str, Array] = {}

    def placement(self, stroke: Stroke) -> str:
        """Nodes and partitions by provider."""
        nodes: Counter[str] = Counter()
        partitions: Counter[str] = Counter()
        for part in self.sessions[stroke].get_provider_graph_assignment_info():
            nodes[part.ep_name] += len(part.get_nodes())
            partitions[part.ep_name] += 1
        if len(nodes) == 1 and "CPUExecutionProvider" in nodes:
            return f"{nodes.total()} nodes on CPUExecutionProvider"
        return ", ".join(f"{nodes[n]} nodes in {partitions[n]} on {n}" for n in nodes)

    def start(self, capacity: int) -> None:
        """Forgets the sequence; at most `capacity` tokens follow."""
        for number, layer in enumerate(self.layers):
            length = 0 if self.is_standard else capacity
            for name in contract.past_names(number):
                self.cache[name] = np.zeros(
                    (1, layer.num_kv_heads, length, layer.head_dim), self.kv_dtype
                )

    def run(self, stroke: Stroke, ids: Array, num_past: int) -> Array:
        """Feeds ids [1, tokens] behind `num_past` others: logits [vocab] of the last."""
        total = num_past + ids.shape[1]
        feeds = {
            contract.INPUT_IDS: ids,
            contract.POSITION_IDS: np.arange(num_past, total)[None],
            contract.LOGIT_INDEX: np.array([[ids.shape[1] - 1]]),
            contract.SEQLENS_K: np.array([total - 1], np.int32),
            contract.TOTAL_SEQUENCE_LENGTH: np.array(total, np.int32),
            **self.cache,
        }
        chosen = self.sessions[stroke]
        binding = chosen.io_binding()
        values = {
            argument.name: ort.OrtValue.ortvalue_from_numpy(feeds[argument.name])
            for argument in chosen.get_inputs()
        }
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        names = [output.name for output in chosen.get_outputs()]
        for name in names:
            past = name.replace("present.", "past_key_values.")
            if self.is_standard or past == name:
                binding.bind_output(name)
            else:
                binding.bind_ortvalue_output(name, values[past])
        chosen.run_with_iobinding(binding)
        outputs = dict(zip(names, binding.get_outputs(), strict=True))
        if self.is_standard:
            for name in self.cache:
                self.cache[name] = outputs[name.replace("past_key_values.", "present.")].numpy()
        logits: Array = outputs[contract.LOGITS].numpy()[0, -1]
        return logits

    def round(self, ids: Array, following: list[int]) -> tuple[list[float], list[Array]]:
        """A prompt and some steps: their milliseconds and the logits.

        The four figures are elapsed and processor time of the prompt, then of one step.
        """
        self.start(ids.shape[1] + len(following))
        marks = [_clocks()]
        logits = [self.run(Stroke.PREFILL, ids, 0)]
        marks.append(_clocks())
        for number, token in enumerate(following):
            logits.append(self.run(Stroke.DECODE, np.array([[token]]), ids.shape[1] + number))
        marks.append(_clocks())
        prompt, steps = (1e3 * (after - before) for before, after in itertools.pairwise(marks))
        return [*prompt, *(steps / max(1, len(following)))], logits


def _clocks() -> Array:
    """Seconds elapsed and seconds of all processors, the latter blind to who else runs."""
    return np.array([time.perf_counter(), time.process_time()])


def session(path: Path, device: Any, options: dict[str, str]) -> Any:
    """A session on the device; None: the CPU provider."""
    wanted = ort.SessionOptions()
    wanted.log_severity_level = 3
    wanted.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if device is None:
        wanted.add_session_config_entry("session.intra_op.allow_spinning", "0")
        wanted.add_session_config_entry("session.disable_quant_qdq", "1")
        return ort.InferenceSession(str(path), wanted, providers=["CPUExecutionProvider"])
    wanted.add_provider_for_devices([device], options)
    return ort.InferenceSession(str(path), wanted)


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["Pss_Anon"].split()[0]) * 1024


def main() -> None:
    """Opens, compares, times and prints."""
    arguments = _arguments()
    bundle = open_bundle(arguments.bundle)
    device = None
    if not arguments.standard_on_cpu:
        module = importlib.import_module(arguments.module)
        ort.register_execution_provider_library(arguments.module, module.get_library_path())
        names = module.get_ep_names()
        device = next(found for found in ort.get_ep_devices() if found.ep_name in names)
    options = dict(pair.split("=", 1) for pair in arguments.option)
    check = bundle.manifest.self_check
    text = [*check.prompt_ids, *check.greedy_ids] if check else [1]
    ids = np.resize(np.array(text), (1, arguments.tokens))
    pairs = {
        "fused, CPU": Pair(bundle, "fused", None, {}),
        f"standard, {device.ep_name if device else 'CPU'}": Pair(
            bundle, "standard", device, options
        ),
    }
    following: list[int] = []
    for _ in range(NUM_STEPS):  # what the fused graphs answer, greedily
        logits = next(iter(pairs.values())).round(ids, following)[1][-1]
        following.append(int(logits.argmax()))
    timings: dict[str, list[list[float]]] = {name: [] for name in pairs}
    answers: dict[str, list[Array]] = {}
    for _ in range(arguments.rounds):
        for name, pair in pairs.items():
            taken, answers[name] = pair.round(ids, following)
            timings[name].append(taken)
    print(f"{bundle.manifest.name}, {bundle.manifest.precision}, {arguments.tokens} tokens")
    first = next(iter(answers.values()))
    for name, pair in pairs.items():
        prefill, prefill_cpu, step, step_cpu = (
            statistics.median(column) for column in zip(*timings[name], strict=True)
        )
        widest = max(np.abs(a - b).max() for a, b in zip(answers[name], first, strict=True))
        same = sum(a.argmax() == b.argmax() for a, b in zip(answers[name], first, strict=True))
        print(f"{name}: prefill {prefill:.0f} ms ({prefill_cpu:.0f} of processors)", end="")
        print(f", a step {step:.1f} ms ({step_cpu:.1f})", end="")
        print(f", {pair.num_bytes / 1e6:.0f} MB; logits within {widest:.2g}", end="")
        print(f", {same} of {len(first)} most likely tokens the same")
        for stroke in Stroke:
            print(f"    {stroke}: {pair.placement(stroke)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--module", default="onnxruntime_ep_openvino")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--standard-on-cpu", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
