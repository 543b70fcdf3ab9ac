"""Who asks: what a key is known by, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.api_keys.allowance import Admission, Allowance
from twostroke.errors import ModelNotAllowedError


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a request.

    `name` is for people: the log, the metrics; "" where no keys are configured. `scope` says whose
    prefixes in the KV cache are whose. `models` are those it may use; None: all.
    """

    name: str
    scope: str
    models: frozenset[str] | None = None
    allowance: Allowance | None = None  # None: no limits

    def may_use(self, model_name: str) -> bool:
        """Whether the model is one of its own."""
        return self.models is None or model_name in self.models

    def check_model(self, model_name: str) -> None:
        """Raises ModelNotAllowedError where it may not use the model."""
        if self.models is not None and model_name not in self.models:
            raise ModelNotAllowedError(
                f"The key {self.name!r} may not use the model {model_name[:80]!r}; its models are: "
                f"{', '.join(sorted(self.models)) or 'none'}.",
                param="model",
            )

    def enter(self) -> Admission:
        """Lets one request begin; see `Allowance.enter`.

        Raises:
            RateLimitError: its limits are used up.
        """
        return Admission(None) if self.allowance is None else self.allowance.enter()


NOBODY = Caller("", "")
