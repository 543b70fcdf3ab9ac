"""Which files of a folder that another tool wrote are its graphs and weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from twostroke.bundle.graph_header import GraphHeader
from twostroke.bundle.open import check_plain, is_bundle
from twostroke.errors import BundleError

GENAI_CONFIG = "genai_config.json"
_SINGLE = "model.onnx"
_FIRST, _WITH_PAST = "decoder_model.onnx", "decoder_with_past_model.onnx"
_MERGED = "decoder_model_merged.onnx"
_ENCODER = "encoder_model.onnx"
ONNX_FOLDER = "onnx"  # many repositories keep their graphs in it
_SUBFOLDERS = ("", ONNX_FOLDER)
_CHECKPOINTS = ("*.safetensors", "pytorch_model*.bin", "*.gguf")
_REPAIR = "Copy the whole folder again from where it was made."


@dataclass(frozen=True, slots=True)
class ForeignGraphs:
    """The graphs' files, relative to the folder with `/`, and in words what they are."""

    prefill: str
    decode: str
    origin: str


def is_foreign(path: Path) -> bool:
    """True for an .onnx file, and for a folder that another tool filled with a model's graphs.

    A folder that also holds a checkpoint is that checkpoint: exported, it becomes a better model.
    Whoever wants its graphs as they are names the .onnx file.
    """
    if path.is_file():
        return path.suffix == ".onnx"
    if not path.is_dir() or is_bundle(path):
        return False
    if (path / GENAI_CONFIG).is_file():
        return True
    has_checkpoint = any(next(path.glob(pattern), None) for pattern in _CHECKPOINTS)
    return not has_checkpoint and any(
        next((path / sub).glob("*.onnx"), None) for sub in _SUBFOLDERS
    )


def find_graphs(root: Path, named: PurePosixPath | None = None) -> ForeignGraphs:
    """The graphs of a folder, or those that the file `named` in it stands for.

    Raises:
        BundleError: half of a pair, several candidates, or no decoder at all.
    """
    for sub in _SUBFOLDERS if named is None else (named.parent,):
        folder = root / sub
        names = {path.name for path in folder.glob("*.onnx")}
        if _ENCODER in names:
            raise BundleError(
                f"{folder / _ENCODER} belongs to an encoder-decoder model; twostroke serves "
                f"models that are a decoder alone."
            )
        if names:
            found = _choose(folder, names, None if named is None else named.name)
            prefill, decode = (str(PurePosixPath(sub, n)) for n in (found.prefill, found.decode))
            return ForeignGraphs(prefill, decode, found.origin)
    raise BundleError(f"{root} has no .onnx file. {_REPAIR}")


def check_file(root: Path, name: str, *, named_by: str) -> os.stat_result:
    """Refuses a file that is missing, a link, or outside of the folder.

    Raises:
        BundleError: which file, and which other one names it.
    """
    if (root / name).is_symlink():
        raise BundleError(
            f"{root / name} is a symbolic link, which may lead anywhere. "
            f"Copy the folder with its files in it: cp -rL {root} COPY"
        )
    return check_plain(root, name, named_by=named_by, repair=f"{named_by} needs it. {_REPAIR}")


def weight_files(root: Path, graph: str, header: GraphHeader) -> Iterable[tuple[str, int]]:
    """The name and size of each file in which a graph keeps weights, checked.

    Raises:
        BundleError: one is missing, too short, a link, or outside of the folder.
    """
    folder = PurePosixPath(graph).parent
    for location, least_bytes in header.external.items():
        name = str(folder / location)
        num_bytes = check_file(root, name, named_by=graph).st_size
        if num_bytes < least_bytes:
            raise BundleError(
                f"{root / name} holds {num_bytes:,} bytes, but {graph} keeps weights in it up to "
                f"byte {least_bytes:,}. {_REPAIR}"
            )
        yield name, num_bytes


def _choose(folder: Path, names: set[str], named: str | None) -> ForeignGraphs:
    if named is not None and named not in (_FIRST, _WITH_PAST):
        return ForeignGraphs(named, named, f"the graph {named}")
    if named is None and _SINGLE in names:
        return ForeignGraphs(_SINGLE, _SINGLE, "optimum's single graph")
    if _FIRST in names and _WITH_PAST in names:
        return ForeignGraphs(_FIRST, _WITH_PAST, "optimum's pair of graphs")
    if named is None and _MERGED in names:
        return ForeignGraphs(_MERGED, _MERGED, "optimum's merged graph")
    for half, other in ((_FIRST, _WITH_PAST), (_WITH_PAST, _FIRST)):
        if half in names:
            raise BundleError(
                f"{folder / other} is missing: {half} is half of a pair, and generating needs "
                f"both. {_REPAIR}"
            )
    if len(names) == 1:
        (only,) = names
        return ForeignGraphs(only, only, f"the graph {only}")
    raise BundleError(
        f"{folder} holds several graphs ({', '.join(sorted(names))}) and none is model.onnx. "
        f"Name one of them as the source: {folder / min(names)}"
    )
