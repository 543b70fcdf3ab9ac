"""`twostroke export`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli import options, precision_flags
from twostroke.cli.progress import ProgressDisplay, size
from twostroke.errors import ExportError, InstallError
from twostroke.types import Stroke

if TYPE_CHECKING:
    from twostroke.backends.hookspecs import ExporterSpec
    from twostroke.bundle.manifest import Manifest

ABOUT = """\
Turns a model into a bundle: a prefill graph and a decode graph over one copy of the weights, the
tokenizer and the chat template, checked against the source model before it is kept. SOURCE is a
Hugging Face folder, a hub id (org/name) or a .gguf file. Needs the packages of the extra `export`;
serving the bundle does not."""

_DIALECTS = {"both": ("fused", "standard")}


def add_command(subparsers: options.Subparsers) -> None:
    """Adds the command to the command line."""
    parser = options.add_parser(
        subparsers,
        "export",
        run,
        summary="turn a model into a bundle",
        about=ABOUT,
        examples=(
            "twostroke export path/to/hf-folder bundles/mine",
            "twostroke export org/name bundles/mine --precision int4 --context 4096",
            "twostroke export model.gguf bundles/mine --name mine",
            "twostroke export path/to/base bundles/mine --adapter path/to/lora",
        ),
    )
    parser.add_argument("source", metavar="SOURCE", help="folder, hub id or .gguf file")
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="the bundle's folder, which must not exist"
    )
    precision_flags.add_flags(parser)
    parser.add_argument(
        "--dialect",
        choices=("fused", "standard", "both"),
        default="fused",
        help="fused: ONNX Runtime's own operators, for CPU, CUDA, DirectML and WebGPU; standard: "
        "plain ONNX, which OpenVINO, TensorRT and NPUs take whole; both share the weights; "
        "default: fused",
    )
    parser.add_argument(
        "--context",
        type=_positive,
        metavar="N",
        help="longest context; default: the model's limit (with long rope its original length: a "
        "longer context takes the long factors at every position)",
    )
    parser.add_argument(
        "--adapter",
        type=Path,
        metavar="FOLDER",
        help="a LoRA adapter (as peft saves it) to merge into the weights",
    )
    parser.add_argument("--name", help="the model's name; default: the source's")
    parser.add_argument("--exporter", help="which plugin's, where several are installed")


def run(arguments: argparse.Namespace) -> int:
    """Exports with progress on stderr, then prints what was made."""
    options.start_logging("warning")
    if arguments.out.exists():
        raise ExportError(f"{arguments.out} exists already; remove it or choose another OUT")
    from twostroke.backends.discovery import load_plugins
    from twostroke.backends.hookspecs import ExportOptions
    from twostroke.bundle import open_bundle

    exporter = choose_exporter(load_plugins().exporters, arguments.exporter)
    own = (arguments.precision, arguments.prefill_precision, arguments.decode_precision)
    for precision in own:
        if precision is not None and precision not in exporter.precisions:
            known = ", ".join(exporter.precisions)
            raise ExportError(f"the exporter {exporter.name!r} makes {known}, not {precision}")
    wish = ExportOptions(
        source=arguments.source,
        out=arguments.out,
        context_tokens=arguments.context,
        name=arguments.name,
        dialects=_DIALECTS.get(arguments.dialect, (arguments.dialect,)),
        adapter=arguments.adapter,
        **precision_flags.export_options(arguments),
    )
    with ProgressDisplay(sys.stderr) as progress:
        folder = exporter.export(wish, progress)
    for line in summary(folder, open_bundle(folder, check_hashes=False).manifest):
        print(line)
    return 0


def choose_exporter(exporters: Mapping[str, ExporterSpec], name: str | None) -> ExporterSpec:
    """The exporter asked for, or the only one.

    Raises:
        InstallError: none is installed.
        ExportError: no exporter of that name, or several and none was named.
    """
    if not exporters:
        raise InstallError(
            'no exporter is installed; pip install "twostroke[export]", and see `twostroke plugins`'
        )
    listed = ", ".join(sorted(exporters))
    if name is None:
        if len(exporters) > 1:
            raise ExportError(f"several exporters are installed; choose with --exporter: {listed}")
        return next(iter(exporters.values()))
    if name not in exporters:
        raise ExportError(f"there is no exporter {name!r}; installed are: {listed}")
    return exporters[name]


def summary(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What was made, how large it is, how near to its source, and what to do with it."""
    from twostroke.bundle.quality import quality_note

    shape = manifest.architecture
    total = sum(fact.num_bytes for fact in manifest.files.values())
    yield (
        f"{folder}: {manifest.name}, {shape.model_type} with {_count(shape.num_parameters)} "
        f"parameters, {manifest.precision}, context {manifest.context_tokens} tokens, "
        f"{size(total)}"
    )
    largest = sorted(manifest.files.items(), key=lambda item: -item[1].num_bytes)[:4]
    yield from _strokes(manifest)
    yield "  files: " + ", ".join(f"{name} {size(fact.num_bytes)}" for name, fact in largest)
    verification = manifest.verification
    if verification is not None:
        yield (
            f"  against the source: same token in {verification.num_argmax_equal} of "
            f"{verification.num_steps} steps; largest difference of a logit "
            f"{verification.prefill_max_abs_diff:.2g} (prefill), "
            f"{verification.decode_max_abs_diff:.2g} (decode)"
        )
        if verification.mean_kl is not None and verification.top1_agreement is not None:
            yield (
                f"  on {verification.num_text_tokens} tokens of text: same token at "
                f"{verification.top1_agreement:.1%} of the positions, "
                f"KL divergence {verification.mean_kl:.2g}"
            )
    note = quality_note(manifest)
    if note is not None:
        yield f"  note: {note}"
    yield f'  try: twostroke generate --model {folder} "Once upon a time"'


def _strokes(manifest: Manifest) -> Iterator[str]:
    """What each stroke's weights take, where the two differ."""
    graphs = [manifest.graph(stroke) for stroke in Stroke]
    told = [
        (f"{graph.stroke} {graph.quantisation.precision}", graph.weight_bytes)
        for graph in graphs
        if graph is not None and graph.weight_bytes is not None
    ]
    shared = graphs[0].shared_weight_bytes if graphs[0] is not None else None
    if shared is None or len(told) < len(graphs) or "/" not in manifest.precision:
        return
    total = sum(num_bytes for _, num_bytes in told) - shared
    each = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in told)
    yield f"  weights: {each}, {size(shared)} of them shared: {size(total)} in memory"


def _count(number: int) -> str:
    for power, unit in ((9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {unit}"
    return str(number)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number
