"""Prints how many nodes a decode graph has, and which operators one layer of it is made of.

    python benchmarks/node_counts.py                   every architecture of the parity list
    python benchmarks/node_counts.py phi gpt2 --precision int8
    python benchmarks/node_counts.py --bundle bundles/smollm2-int8

A layer is what lies between the first attention of the graph and the second.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import onnx

from twostroke.bundle import open_bundle
from twostroke.types import Stroke

ATTENTION = "GroupQueryAttention"


def main() -> None:
    """Reads the arguments and prints a line for each graph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architectures", nargs="*", help="names of the parity list; all by default")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--bundle", type=Path, help="a bundle to look at instead")
    options = parser.parse_args()
    if options.bundle is not None:
        print(line(options.bundle.name, options.bundle))
        return
    from twostroke_export.testing.architectures import ARCHITECTURES

    for architecture in ARCHITECTURES:
        is_wanted = not options.architectures or architecture.name in options.architectures
        if is_wanted and architecture.refusal is None:
            with tempfile.TemporaryDirectory() as work:
                print(line(architecture.name, export(architecture, Path(work), options.precision)))


def export(architecture: object, work: Path, precision: str) -> Path:
    """A bundle of a tiny random model."""
    from twostroke_export.pipeline import export_all
    from twostroke_export.testing.tiny_models import save_tiny_model

    folder = save_tiny_model(work / "source", architecture.model_type, **architecture.changes)
    return export_all(str(folder), {precision: work / "bundle"})[precision]


def line(name: str, bundle: Path) -> str:
    """What a bundle's decode graph is made of."""
    graph = open_bundle(bundle, check_hashes=False).graph(Stroke.DECODE)
    operators = [node.op_type for node in onnx.load(graph, load_external_data=False).graph.node]
    first, second = [i for i, name in enumerate(operators) if name == ATTENTION][:2]
    layer = Counter(operators[first:second])
    told = ", ".join(f"{count} {operator}" for operator, count in layer.most_common())
    return f"{name}: {len(operators)} nodes, {second - first} a layer ({told})"


if __name__ == "__main__":
    main()
