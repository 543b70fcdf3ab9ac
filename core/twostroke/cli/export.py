"""`twostroke export`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli import options, precision_flags
from twostroke.cli.export_summary import summary
from twostroke.cli.progress import ProgressDisplay
from twostroke.errors import ExportError, InstallError

if TYPE_CHECKING:
    from twostroke.backends.discovery import Plugins
    from twostroke.backends.hookspecs import ExporterSpec, ExportOptions
    from twostroke.bundle import Bundle

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
            "twostroke export model.gguf bundles/mine --precision fp32,int8,mixed,int4 "
            "--evaluate book.txt",
            "twostroke export path/to/base bundles/mine --adapter path/to/lora",
        ),
    )
    parser.add_argument("source", metavar="SOURCE", help="folder, hub id or .gguf file")
    parser.add_argument(
        "out",
        metavar="OUT",
        type=Path,
        help="the bundle's folder, which must not exist; with several precisions the beginning of "
        "their names: OUT-int8, OUT-int4",
    )
    precision_flags.add_flags(parser)
    parser.add_argument(
        "--dialect",
        choices=("fused", "standard", "both"),
        default="fused",
        help="fused: ONNX Runtime's own operators, for CPU, CUDA and WebGPU; standard: plain "
        "ONNX, for OpenVINO, TensorRT, NPUs and DirectML; both share the weights; "
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
    parser.add_argument(
        "--evaluate",
        type=Path,
        metavar="TEXT",
        help="a text (UTF-8) to measure every bundle on, against the source in fp32: perplexity, "
        "KL divergence, how often the most likely token is the same",
    )
    parser.add_argument("--exporter", help="which plugin's, where several are installed")


def run(arguments: argparse.Namespace) -> int:
    """Exports with progress on stderr, then prints what was made."""
    options.start_logging("warning")
    wishes = _wishes(arguments)
    for wish in wishes:
        if wish.out.exists():
            raise ExportError(f"{wish.out} exists already; remove it or choose another OUT")
    from twostroke.backends.discovery import load_plugins
    from twostroke.bundle import open_bundle
    from twostroke.evaluation import read_text

    plugins = load_plugins()
    exporter = choose_exporter(plugins.exporters, arguments.exporter)
    _check_precisions(exporter, arguments)
    if arguments.evaluate is not None:
        read_text(arguments.evaluate)  # refused before the heavy work
    with ProgressDisplay(sys.stderr) as progress:
        folders = _export(exporter, wishes, progress)
    bundles = [open_bundle(folder, check_hashes=False) for folder in folders]
    for folder, bundle in zip(folders, bundles, strict=True):
        for line in summary(folder, bundle.manifest):
            print(line)
    if arguments.evaluate is not None and len(bundles) > 1:
        for line in _comparison(bundles, plugins):
            print(line)
    return 0


def _wishes(arguments: argparse.Namespace) -> list[ExportOptions]:
    """What is asked of the exporter, a bundle for each precision."""
    from twostroke.backends.hookspecs import ExportOptions

    out, several = arguments.out, len(arguments.precision) > 1
    return [
        ExportOptions(
            source=arguments.source,
            out=out.with_name(f"{out.name}-{precision}") if several else out,
            context_tokens=arguments.context,
            name=arguments.name,
            dialects=_DIALECTS.get(arguments.dialect, (arguments.dialect,)),
            adapter=arguments.adapter,
            evaluate=arguments.evaluate,
            **precision_flags.export_options(arguments, precision),
        )
        for precision in arguments.precision
    ]


def _check_precisions(exporter: ExporterSpec, arguments: argparse.Namespace) -> None:
    own = (*arguments.precision, arguments.prefill_precision, arguments.decode_precision)
    for precision in own:
        if precision is not None and precision not in exporter.precisions:
            known = ", ".join(exporter.precisions)
            raise ExportError(f"the exporter {exporter.name!r} makes {known}, not {precision}")


def _export(
    exporter: ExporterSpec, wishes: Sequence[ExportOptions], progress: ProgressDisplay
) -> list[Path]:
    if exporter.export_several is not None and len(wishes) > 1:
        return exporter.export_several(wishes, progress)
    return [exporter.export(wish, progress) for wish in wishes]


def _comparison(bundles: Sequence[Bundle], plugins: Plugins) -> Iterator[str]:
    """The bundles side by side, by what `--evaluate` measured and how fast they are here."""
    from twostroke.cli.quality_table import quality_table
    from twostroke.evaluation import Evaluated
    from twostroke.evaluation.advice import advise
    from twostroke.evaluation.timing import decode_ms

    found = [
        Evaluated(bundle, bundle.manifest.evaluations[-1], decode_ms(bundle, plugins))
        for bundle in bundles
        if bundle.manifest.evaluations
    ]
    if found:
        yield from quality_table(found)
        yield f"hint: {advise(found)}"


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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number
