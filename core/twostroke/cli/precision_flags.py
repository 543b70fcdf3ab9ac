"""The flags of `twostroke export` that say in what weights, floats and cache are kept."""

from __future__ import annotations

import argparse
from typing import Any

PRECISIONS = ("fp32", "fp16", "bf16", "int8", "mixed", "int4")
BLOCK_SIZES = (16, 32, 64, 128, 256)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them as a group of their own."""
    group = parser.add_argument_group(
        "precision",
        "int8 stays close to the source and is what CPUs do best; int4 is the smallest and costs\n"
        "quality; mixed measures which matrices bear 4 bits; fp32 is exact; fp16 and bf16 are for\n"
        "GPUs. docs/precision.md has the figures.",
    )
    group.add_argument(
        "--precision",
        type=_precisions,
        metavar="P[,P…]",
        default=("int8",),
        help=f"of the weights, one of {', '.join(PRECISIONS)}; several make a bundle each from one "
        "load; default: int8",
    )
    for stroke in ("prefill", "decode"):
        group.add_argument(
            f"--{stroke}-precision",
            choices=PRECISIONS,
            help=f"of the {stroke} graph alone; two precisions take the memory of both",
        )
    group.add_argument(
        "--mixed-kl",
        type=float,
        metavar="X",
        help="how far mixed may go from the source, mean KL divergence in nats; default: 0.05",
    )
    group.add_argument(
        "--mixed-mb",
        type=float,
        metavar="N",
        help="the most that the layers' weights of mixed may take, in MB; default: no bound",
    )
    _add_blocks(group)
    group.add_argument(
        "--activations",
        choices=("fp32", "fp16", "bf16"),
        help="the floats that the graphs compute in and keep their scales and cache in; default: "
        "the precision itself for fp16 and bf16, fp32 for the rest",
    )
    group.add_argument(
        "--kv-dtype",
        choices=("auto", "int8"),
        default="auto",
        help="the KV cache: auto is in the floats of the activations; int8 takes a quarter of "
        "fp32's memory, decodes faster behind a long context and reads prompts slower; "
        "default: auto",
    )


def export_options(arguments: argparse.Namespace, precision: str) -> dict[str, Any]:
    """The fields of `ExportOptions` that these flags fill, for one of the precisions."""
    megabytes = arguments.mixed_mb
    mixing = {
        "mixed_kl": arguments.mixed_kl,
        "mixed_budget_bytes": None if megabytes is None else int(megabytes * 1e6),
    }
    is_one_of_several = len(arguments.precision) > 1 and precision != "mixed"
    return {
        "precision": precision,
        "prefill_precision": arguments.prefill_precision,
        "decode_precision": arguments.decode_precision,
        "block_size": arguments.block_size,
        "is_symmetric": arguments.symmetric,
        "accuracy_level": arguments.accuracy_level,
        "activations": arguments.activations,
        "kv_dtype": None if arguments.kv_dtype == "auto" else arguments.kv_dtype,
        **({} if is_one_of_several else mixing),
    }


def _add_blocks(group: Any) -> None:
    """How quantised weights are cut and multiplied."""
    group.add_argument(
        "--block-size",
        type=int,
        choices=BLOCK_SIZES,
        help="quantised weights that share a scale: small ones are more exact and larger on disk; "
        "default: 32",
    )
    zeros = group.add_mutually_exclusive_group()
    zeros.add_argument(
        "--symmetric",
        action="store_true",
        default=None,
        help="quantised weights without zero points: a little smaller, less exact at 4 bits; the "
        "default for int8",
    )
    zeros.add_argument(
        "--asymmetric",
        action="store_false",
        default=None,
        dest="symmetric",
        help="quantised weights with zero points; the default for int4",
    )
    group.add_argument(
        "--accuracy-level",
        type=int,
        choices=(0, 1, 4),
        help="how quantised weights are multiplied: 4 in int8, 1 and 0 in floats, which is more "
        "exact and on the CPU many times slower; default: 4",
    )


def _precisions(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is none of {', '.join(PRECISIONS)}; several are parted by commas"
        )
    return names
