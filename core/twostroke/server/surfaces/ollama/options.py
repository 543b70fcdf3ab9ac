"""`options` of a request: how tokens are chosen, by Ollama's names.

What tells how to load a model (`num_gpu`, `num_thread`, `use_mmap` and the like) is the YAML's to
say and is ignored, as are names that are not known. So is `num_ctx`: the context is always the
model's, and a prompt that is too long for it is refused, never cut.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from twostroke.errors import RequestError
from twostroke.server.fields import Int, Stops

_OFF: dict[str, tuple[float, ...]] = {"typical_p": (0, 1), "tfs_z": (0, 1), "mirostat": (0,)}


class Options(BaseModel):
    """How tokens are chosen. None means: the model's default."""

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    num_predict: Int | None = None
    """most tokens of the answer; below 1: to the end of the context"""
    temperature: float | None = None
    top_k: Int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Int | None = None
    """the same seed gives the same answer; -1: none"""
    stop: Stops = None
    """text that ends the answer and is no part of it"""
    repeat_penalty: float | None = None
    repeat_last_n: Int | None = None
    """0: no repeat penalty; other values change nothing"""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: Int | None = None

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: a way of sampling is asked for that is not built.
        """
        for name, off in _OFF.items():
            value = getattr(self, name)
            if value is not None and value not in off:
                raise RequestError(
                    f"options.{name} is not supported by this server; leave it out, or use top_p "
                    "and min_p.",
                    param=f"options.{name}",
                    code="unsupported_parameter",
                )
        same = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")
        given = {name: getattr(self, name) for name in (*same, "stop")}
        if self.num_predict is not None and self.num_predict > 0:
            given["max_tokens"] = self.num_predict
        if self.seed is not None and self.seed != -1:
            given["seed"] = self.seed
        if self.repeat_last_n != 0:
            given["repetition_penalty"] = self.repeat_penalty
        return {name: value for name, value in given.items() if value is not None}
