"""Does the decode time of a mixture follow its active experts, or all of them?

Exports random mixtures that differ in the number of experts only, two of which are active, with
one operator for a layer's experts (fp32 and int8) and with gathered weights (fp32), and times a
decode step and a prefill of all of them in turns, so that whatever else the machine does befalls
each alike. Ratios within one run mean something, milliseconds of different runs do not.

    python benchmarks/moe_decode.py [--hidden 512] [--inner 1024] [--layers 4] [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from twostroke.bundle import open_bundle
from twostroke_export import experts
from twostroke_export.pipeline import export_all
from twostroke_export.reference import evaluation_text
from twostroke_export.runner import TwoGraphs
from twostroke_export.testing.tiny_models import save_tiny_model, tiny_tokenizer

NUM_ACTIVE, NUM_PREFILL_TOKENS, NUM_STEPS = 2, 256, 16
Timings = dict[str, list[float]]  # by variant, in ms


def main() -> None:
    """Exports, measures and prints the table."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as work:
        variants: dict[str, tuple[TwoGraphs, int]] = {}
        for num_experts in arguments.experts:
            variants.update(_export(Path(work) / str(num_experts), num_experts, arguments))
        graphs = {name: pair[0] for name, pair in variants.items()}
        decode, prefill = _measure(graphs, arguments.rounds)
    print(
        f"hidden {arguments.hidden}, inner {arguments.inner}, {arguments.layers} layers; "
        f"medians of {arguments.rounds} interleaved rounds"
    )
    print(
        f"{'experts':12}{'':10}{'weights':>10}{'a decode step':>16}"
        f"{f'prefill of {NUM_PREFILL_TOKENS}':>18}"
    )
    for name, (_, num_bytes) in variants.items():
        step, prompt = (statistics.median(timings[name]) for timings in (decode, prefill))
        print(f"{name:22}{num_bytes / 1e6:>7.0f} MB{step:>13.2f} ms{prompt:>15.1f} ms")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in {"hidden": 512, "inner": 1024, "layers": 4, "rounds": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--experts", type=int, nargs="+", default=[4, 16])
    return parser.parse_args()


def _export(
    work: Path, num_experts: int, arguments: argparse.Namespace
) -> Iterator[tuple[str, tuple[TwoGraphs, int]]]:
    """The variants of one mixture: graphs that are ready to run, and the bytes of their weights."""
    folder = save_tiny_model(
        work / "source",
        "mixtral",
        hidden_size=arguments.hidden,
        intermediate_size=arguments.inner,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=max(1, arguments.hidden // 128),
        num_local_experts=num_experts,
        num_experts_per_tok=NUM_ACTIVE,
        max_position_embeddings=1024,
        initializer_range=0.03,
    )
    with mock.patch.object(experts, "settle", return_value=None):  # as if no operator would do
        bundles = {"gathered": export_all(str(folder), {"fp32": work / "gathered"})["fp32"]}
    bundles |= export_all(str(folder), {name: work / name for name in ("fp32", "int8")})
    for name, bundle in bundles.items():
        manifest = open_bundle(bundle, check_hashes=False).manifest
        graphs = TwoGraphs(
            bundle, manifest.kv_layers, manifest.kv_dtype, capacity_tokens=2 * NUM_PREFILL_TOKENS
        )
        yield (
            f"{NUM_ACTIVE} of {num_experts:<4} {name}",
            (graphs, (bundle / "weights.bin").stat().st_size),
        )


def _measure(graphs: Mapping[str, TwoGraphs], num_rounds: int) -> tuple[Timings, Timings]:
    """Milliseconds of a decode step behind a prompt of 32, and of a whole prefill."""
    ids: list[int] = tiny_tokenizer().encode(evaluation_text()).ids
    decode: Timings = {name: [] for name in graphs}
    prefill: Timings = {name: [] for name in graphs}
    for number in range(num_rounds + 1):
        is_warm = number > 0
        for name, pair in graphs.items():
            pair.lengths = [0]
            start = time.perf_counter()
            pair.prefill([ids[:NUM_PREFILL_TOKENS]])
            prefill[name] += [1e3 * (time.perf_counter() - start)] * is_warm
            pair.lengths = [32]
            start = time.perf_counter()
            for token in ids[number : number + NUM_STEPS]:  # other tokens choose other experts
                pair.decode([token])
            decode[name] += [1e3 * (time.perf_counter() - start) / NUM_STEPS] * is_warm
    return decode, prefill


if __name__ == "__main__":
    main()
