"""Folders that other tools made, opened like bundles: optimum's and onnxruntime-genai's.

Nothing is converted and nothing is written. The manifest is put together from the JSON files
beside the graphs and from what the graphs declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from twostroke.bundle.contract import INPUT_IDS, LOGITS, past_names
from twostroke.bundle.foreign_config import ForeignFacts, genai_graph, read_facts
from twostroke.bundle.foreign_files import (
    GENAI_CONFIG,
    ONNX_FOLDER,
    ForeignGraphs,
    check_file,
    find_graphs,
    weight_files,
)
from twostroke.bundle.graph_header import GraphHeader, read_header
from twostroke.bundle.manifest import (
    Architecture,
    FileFact,
    GraphFact,
    KVLayer,
    Manifest,
    Quantisation,
)
from twostroke.bundle.open import Bundle
from twostroke.errors import BundleError
from twostroke.types import Stroke

_PRECISIONS = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "int8": "int8",
    "uint8": "int8",
    "int4": "int4",
    "uint4": "int4",
}
_TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
_IN_PLACE = "GroupQueryAttention"  # the operator that writes keys and values where the past lies


def open_foreign(path: Path) -> Bundle:
    """Opens a folder of another tool, or the graph that a path to an .onnx file names in it.

    Raises:
        BundleError: what is missing, of a forbidden kind, or not a decoder that can be fed.
    """
    root, named = _root_of(path.absolute())
    if not (root / "tokenizer.json").exists():
        raise BundleError(
            f"{root} has no tokenizer.json, which turns text into ids. Save it beside the graphs: "
            f"AutoTokenizer.from_pretrained(SOURCE).save_pretrained({str(root)!r})"
        )
    facts = read_facts(root)
    graphs = _graphs(root, named)
    headers = {name: _header(root, name) for name in (graphs.prefill, graphs.decode)}
    layers = _kv_layers(root / graphs.decode, headers[graphs.decode], facts)
    manifest = Manifest(
        name=root.name or "model",
        architecture=_architecture(facts, headers[graphs.decode], len(layers)),
        context_tokens=facts.context_tokens,
        kv_layers=layers,
        graphs=(
            _graph_fact(Stroke.PREFILL, graphs.prefill, headers[graphs.prefill]),
            _graph_fact(Stroke.DECODE, graphs.decode, headers[graphs.decode]),
        ),
        tokens=facts.tokens,
        generation=facts.generation,
        source={"origin": graphs.origin},
        files=_files(root, headers),
    )
    return Bundle(root, manifest, graphs.origin)


def _root_of(path: Path) -> tuple[Path, PurePosixPath | None]:
    """The model's folder, and the file in it that `path` names, if it names one."""
    if not path.is_file():
        return path, None
    root = path.parent
    if root.name == ONNX_FOLDER and not (root / "tokenizer.json").exists():
        root = root.parent
    return root, PurePosixPath(path.relative_to(root).as_posix())


def _graphs(root: Path, named: PurePosixPath | None) -> ForeignGraphs:
    if not (root / GENAI_CONFIG).exists():
        return find_graphs(root, named)
    file = genai_graph(root) if named is None else str(named)
    return ForeignGraphs(file, file, "onnxruntime-genai's graph")


def _header(root: Path, graph: str) -> GraphHeader:
    """What a graph declares, if it is a language model's.

    Raises:
        BundleError: it is damaged, or computes no logits from ids.
    """
    check_file(root, graph, named_by="the model")
    header = read_header(root / graph)
    if INPUT_IDS not in header.inputs or LOGITS not in header.outputs:
        raise BundleError(
            f"{root / graph} is no language model's graph: it does not take {INPUT_IDS!r} and "
            f"answer {LOGITS!r}. It takes {', '.join(header.inputs) or 'nothing'}."
        )
    return header


def _kv_layers(graph: Path, header: GraphHeader, facts: ForeignFacts) -> tuple[KVLayer, ...]:
    """The geometry of each layer's cache: as declared, or, where that is left free, as configured.

    Raises:
        BundleError: the graph keeps no cache, or one of another form.
    """
    num_layers = sum(name in header.inputs for name in map(_key_name, range(len(header.inputs))))
    if num_layers == 0:
        raise BundleError(
            f"{graph} keeps no cache (it takes no {_key_name(0)}), so each token would cost the "
            f"whole prompt again. Export it with a cache: "
            f"optimum-cli export onnx --task text-generation-with-past"
        )
    layers = []
    for layer in range(num_layers):
        key = header.inputs.get(_key_name(layer))
        if key is None or len(key.shape) != 4:
            found = "nothing" if key is None else str(list(key.shape))
            raise BundleError(
                f"{graph} declares {found} for {_key_name(layer)}; twostroke feeds [batch, "
                f"kv_heads, past, head_dim]. Export the source model with `twostroke export`."
            )
        _, heads, _, width = key.shape
        layers.append(
            KVLayer(
                num_kv_heads=_fixed(heads) or facts.num_kv_heads,
                head_dim=_fixed(width) or facts.head_dim,
            )
        )
    return tuple(layers)


def _key_name(layer: int) -> str:
    return past_names(layer)[0]


def _architecture(facts: ForeignFacts, header: GraphHeader, num_layers: int) -> Architecture:
    shape = header.outputs[LOGITS].shape
    return Architecture(
        model_type=facts.model_type,
        num_layers=num_layers,
        hidden_size=facts.hidden_size,
        num_heads=facts.num_heads,
        vocab_size=(_fixed(shape[-1]) if shape else 0) or facts.vocab_size,
        num_parameters=0,  # packed weights do not tell
    )


def _fixed(dimension: int | str) -> int:
    """A dimension that the graph fixes; 0 where it leaves it free."""
    return dimension if isinstance(dimension, int) else 0


def _graph_fact(stroke: Stroke, file: str, header: GraphHeader) -> GraphFact:
    presents = [t for name, t in header.outputs.items() if name.startswith("present")]
    return GraphFact(
        stroke=stroke,
        dialect="fused" if _IN_PLACE in header.operators else "standard",
        file=file,
        quantisation=Quantisation(precision=_precision(header)),
        kv_dtype=presents[0].dtype if presents else "float32",
    )


def _precision(header: GraphHeader) -> str:
    """That of the products where they are block-quantised, else of most weights."""
    if header.weight_bits:
        return f"int{header.weight_bits.most_common(1)[0][0]}"
    dtypes = [dtype for dtype, _ in header.num_weights.most_common() if dtype in _PRECISIONS]
    return _PRECISIONS[dtypes[0]] if dtypes else "unknown"


def _files(root: Path, headers: Mapping[str, GraphHeader]) -> dict[str, FileFact]:
    """Every file that is used, with its size. Hashes are not recorded anywhere."""
    sizes = dict(
        item for name, header in headers.items() for item in weight_files(root, name, header)
    )
    used = [*headers, *(name for name in _TEXT_FILES if (root / name).exists())]
    sizes |= {name: check_file(root, name, named_by="the model").st_size for name in used}
    return {name: FileFact(num_bytes=size, sha256=None) for name, size in sizes.items()}
