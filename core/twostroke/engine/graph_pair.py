"""The two graphs of an engine together: which reads what, and what their numbers have in common."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.engine.open_graph import OpenGraph
from twostroke.types import Stroke


@dataclass(frozen=True, slots=True)
class GraphPair:
    """Both graphs, opened; one and the same where a bundle has only one."""

    prefill: OpenGraph
    decode: OpenGraph

    def reader(self, start: int) -> OpenGraph:
        """The graph that reads prompt tokens at `start`."""
        return self.prefill if start == 0 or self.prefill.past else self.decode

    def reading_stroke(self, start: int) -> Stroke:
        """The stroke whose graph reads prompt tokens at `start`."""
        return Stroke.DECODE if self.reader(start) is self.decode else Stroke.PREFILL

    def verification_obstacle(self, *, chunks_prompts: bool, has_one_cache: bool) -> str | None:
        """Why drafts cannot be verified, as a sentence; None where they can."""
        reader = self.reader(1)
        if not reader.takes_chunks or not chunks_prompts:
            return f"{reader.name} cannot add several tokens to what a row holds"
        if not reader.logit_rows.may_be_several:
            return f"{reader.name} answers the logits of one position only"
        if reader is self.decode:
            return None
        if not has_one_cache:
            return "prefill and decode have a KV cache each"
        if reader.fact.quantisation != self.decode.fact.quantisation:
            return "prefill and decode differ in precision, so that the answer would change"
        return None

    @property
    def verifies_floats(self) -> bool:
        """Whether the weights are floats, whose products come out alike however many they are."""
        return self.decode.fact.quantisation.precision.startswith(("fp", "bf"))

    @property
    def compute_floats_alike(self) -> bool:
        """Whether both graphs are of float weights and on one device, so that what either writes
        to the KV cache differs in the last bits only.
        """
        is_one_kind = self.prefill.backend.name == self.decode.backend.name
        is_one_kind &= self.prefill.backend.device == self.decode.backend.device
        precision = self.prefill.fact.quantisation.precision
        return is_one_kind and self.verifies_floats and precision.startswith(("fp", "bf"))
