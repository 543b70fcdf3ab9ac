"""Which floats and which graphs an NVIDIA GPU can run, and what to do about those it cannot.

Sources: NVIDIA's CUDA 13 release notes (devices below compute capability 7.5 are gone; bfloat16
arithmetic came with 8.0) and what ONNX Runtime registers its CUDA kernel of GroupQueryAttention
for.
"""

from __future__ import annotations

from twostroke.backends.ort import OrtSession
from twostroke.bundle.graph_header import GraphHeader
from twostroke.errors import PlacementError

Capability = tuple[int, int]

_ATTENTION = "GroupQueryAttention"
_KV_DTYPES = frozenset({"float16", "bfloat16"})
_OLDEST_BFLOAT16 = (8, 0)
_OLDEST = {12: (6, 0), 13: (7, 5)}  # by CUDA's major version


def floats_of(capability: Capability) -> frozenset[str]:
    """The floats that a GPU computes in, by numpy's names; float32 is everywhere."""
    own = {"float32", "float16"}
    return frozenset({*own, "bfloat16"} if capability >= _OLDEST_BFLOAT16 else own)


def too_old(name: str, capability: Capability, cuda: tuple[int, int] | None) -> str | None:
    """Why the installed ONNX Runtime has no kernels for a GPU, as a sentence; None where it has."""
    if cuda is None:
        return None
    oldest = _OLDEST.get(cuda[0], _OLDEST[max(_OLDEST)])
    if capability >= oldest:
        return None
    have, need = (".".join(map(str, version)) for version in (capability, oldest))
    advice = (
        "install an onnxruntime-gpu that was built for CUDA 12"
        if capability >= _OLDEST[12]
        else "use the backend cpu"
    )
    return (
        f"{name} has compute capability {have}, and CUDA {cuda[0]} serves {need} and later: "
        f"{advice}"
    )


def refuse_kv_dtype(session: OrtSession, graph: str, header: GraphHeader | None = None) -> None:
    """Says plainly that attention left the GPU because of the KV cache's dtype.

    Raises:
        PlacementError: names the dtype and what to export instead.
    """
    found = {s.dtype for n, s in session.inputs.items() if n.startswith("past_key_values.")}
    odd = sorted(found - _KV_DTYPES)
    if odd and _ATTENTION in session.placement.strays:
        raise PlacementError(
            f"{graph} keeps its KV cache in {odd[0]}, and {_ATTENTION} runs on CUDA in float16 "
            f"and bfloat16 only: export the model again with {_advice(odd[0], header)}.",
            backend="cuda",
        )


def _advice(dtype: str, header: GraphHeader | None) -> str:
    if dtype == "int8":
        return "`--kv-dtype auto --activations fp16`"
    bits = header.weight_bits if header is not None else None
    if bits:
        return f"`--precision int{min(bits)} --activations fp16`"
    return "`--precision fp16`"
