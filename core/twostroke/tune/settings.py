"""What an operator's requests look like, and how much `tune` may try."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests that a placement is judged by: their lengths, and how many come at once."""

    prompt_tokens: int = 512
    answer_tokens: int = 128
    streams: tuple[int, ...] = (1, 8)

    def __post_init__(self) -> None:
        """Raises ConfigError where a number is below 1 or there is no stream at all."""
        numbers = {"prompt-tokens": self.prompt_tokens, "answer-tokens": self.answer_tokens}
        problems = [
            f"--{name} must be 1 or more, not {number}"
            for name, number in numbers.items()
            if number < 1
        ]
        if not self.streams or min(self.streams) < 1:
            problems.append("--streams must name one or more numbers from 1 on, e.g. 1,8")
        if problems:
            raise ConfigError(problems)

    @property
    def context_tokens(self) -> int:
        """What a row must hold."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def past_tokens(self) -> int:
        """The tokens in a row on average while its answer is made."""
        return self.prompt_tokens + self.answer_tokens // 2

    def sentence(self) -> str:
        """E.g. `prompts of 512 tokens, answers of 128, 1 and 8 at once`."""
        at_once = " and ".join(map(str, self.streams))
        return (
            f"prompts of {self.prompt_tokens} tokens, answers of {self.answer_tokens}, "
            f"{at_once} at once"
        )


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """How much is tried and for how long.

    `is_quick` leaves out thread counts and dialects that are rarely best. `precisions` are measured
    beside the model's own; a bundle with another one is chosen only with `may_change_precision`.
    `seconds` is what measuring may take; loading graphs, and exporting them, comes before.
    """

    workload: Workload = Workload()
    is_quick: bool = False
    seconds: float = 120.0
    precisions: tuple[str, ...] = ()
    may_change_precision: bool = False
