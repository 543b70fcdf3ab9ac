"""The body of `/completion`, and what it means in the server's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from twostroke.errors import RequestError
from twostroke.server.fields import Count, Int, QueueFields, Stops
from twostroke.server.turn import Prompt

_RANDOM_SEEDS = (-1, 2**32 - 1)
_NEVER = -100.0  # a bias that no logit overcomes

# The values that ask for nothing. What only shapes one of them (mirostat_tau, dry_base, …) is
# ignored, and so is what can't change an answer here (id_slot, cache_prompt, n_keep, …).
HARMLESS: dict[str, tuple[Any, ...]] = {
    "grammar": ("",),
    "dynatemp_range": (0, 0.0),
    "typical_p": (1, 1.0),
    "top_n_sigma": (-1, -1.0, 0, 0.0),
    "mirostat": (0,),
    "dry_multiplier": (0, 0.0),
    "xtc_probability": (0, 0.0),
    "n_indent": (0,),
    "min_keep": (0, 1),
    "t_max_predict_ms": (0, -1),
    "samplers": (["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],),
    "post_sampling_probs": (False,),
    "lora": ([],),
}
REASONS = {
    "grammar": "It is read as GBNF by llama.cpp and by nobody else: send json_schema, or ask "
    "/generate with a grammar in Lark's dialect.",
}

Prompts = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": ["string", "array", "object"],
            "items": {"type": ["string", "integer", "array", "object"]},
        }
    ),
]
Bias = Annotated[Any, WithJsonSchema({"type": ["array", "object", "null"]})]


class LlamaCompletionBody(QueueFields):
    """The body of a completion. Other fields are ignored, or refused (`HARMLESS`)."""

    model_config = ConfigDict(strict=True, frozen=True)

    prompt: Prompts
    """text, token ids, `{"prompt_string": text}`, or a list of these"""
    model: str | None = None
    """which one; may be left out where one is served"""
    n_predict: Annotated[Int, Field(ge=-2)] | None = None
    """most tokens of an answer; -1: to the end of the context"""
    n_cmpl: Count = None
    """answers to each prompt"""
    stream: bool | None = None
    """whether tokens are sent as they are made"""
    temperature: float | None = None
    """0 and below is greedy"""
    top_k: Int | None = None
    """only so many of the likeliest tokens; 0 and below: all"""
    top_p: float | None = None
    """only the likeliest tokens that together have this probability"""
    min_p: float | None = None
    """only tokens with at least this share of the likeliest one's probability"""
    repeat_penalty: float | None = None
    """above 1: less of what stands in prompt or answer"""
    repeat_last_n: Int | None = None
    """with a penalty only -1: it looks at all tokens"""
    presence_penalty: float | None = None
    """-2 to 2: less of what stands in the answer, once"""
    frequency_penalty: float | None = None
    """-2 to 2: the same for each time it stands there"""
    logit_bias: Bias = None
    """pairs of a token id and what is added to its logit, or an object; false: never this token"""
    seed: Int | None = None
    """the same seed gives the same answer; -1: another one each time"""
    stop: Stops = None
    """text that ends the answer and is no part of it"""
    ignore_eos: bool | None = None
    """go on behind the end-of-sequence token"""
    json_schema: Any = None
    """the answer is JSON that follows it"""
    n_probs: Int | None = None
    """log-probabilities with so many alternatives, up to 20; 0: none"""
    return_tokens: bool | None = None
    """whether whole answers hold the token ids"""
    return_progress: bool | None = None
    """whether a stream says how far the prompt is read"""
    timings_per_token: bool | None = None
    """whether each part of a stream has timings"""
    response_fields: list[str] | None = None
    """the only fields of the answer that are wanted; `a/b` is the `b` in `a`"""

    def sampling(self) -> dict[str, Any]:
        """What was given, by the names of `SamplingParams`.

        Raises:
            RequestError: a value is wrong, or asks for a window of penalties.
        """
        self._check_window()
        seed = None if self.seed in _RANDOM_SEEDS else self.seed
        given = {
            "max_tokens": None if self.n_predict is None or self.n_predict < 0 else self.n_predict,
            "temperature": _at_least_0(self.temperature),
            "top_k": _at_least_0(self.top_k),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self._repetition_penalty(),
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": _bias(self.logit_bias),
            "seed": seed,
            "stop": self.stop,
            "ignore_eos": self.ignore_eos,
            "logprobs": self.n_probs or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def prompts(self) -> list[Prompt]:
        """The prompts, one or several.

        Raises:
            RequestError: there is none, or one of a kind that is not taken.
        """
        value = self.prompt
        is_ids = isinstance(value, list) and set(map(type, value)) <= {int}
        if is_ids or not isinstance(value, list):
            return [_prompt(value, "prompt")]
        if any(type(each) is int for each in value):
            raise RequestError(
                "prompt mixes text and token ids; send either a text or ids.", param="prompt"
            )
        return [_prompt(each, f"prompt[{number}]") for number, each in enumerate(value)]

    @property
    def is_several(self) -> bool:
        """Whether the answer is a list."""
        return len(self.prompts()) > 1 or self.n_cmpl not in (None, 1)

    def _repetition_penalty(self) -> float | None:
        return 1.0 if self.repeat_last_n == 0 else self.repeat_penalty

    def _check_window(self) -> None:
        """llama.cpp looks at the last so many tokens only; here penalties look at all of them."""
        penalties = (self.presence_penalty, self.frequency_penalty)
        is_used = self.repeat_penalty not in (None, 1) or any(penalties)
        if is_used and self.repeat_last_n not in (None, -1, 0):
            raise RequestError(
                "repeat_last_n with a penalty may only be -1 here: penalties look at all tokens, "
                "not at the last few.",
                param="repeat_last_n",
                code="unsupported_parameter",
            )


def _prompt(value: Any, param: str) -> Prompt:
    if isinstance(value, Mapping) and isinstance(value.get("prompt_string"), str):
        if value.get("multimodal_data"):
            raise RequestError(
                "multimodal_data is not supported: models here read text only.",
                param=param,
                code="unsupported_parameter",
            )
        return str(value["prompt_string"])
    if isinstance(value, str) or (isinstance(value, list) and set(map(type, value)) <= {int}):
        return value
    raise RequestError(
        f"{param} must be a string, a list of token ids, or an object with prompt_string.",
        param=param,
    )


def _at_least_0(value: float | None) -> float | None:
    return None if value is None else max(value, 0)


def _bias(value: Any) -> dict[str, float] | None:
    """The bias of each token id.

    Raises:
        RequestError: it is neither pairs nor an object, or names a token by its text.
    """
    if value is None or value == []:
        return None
    pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
    if not isinstance(value, list | Mapping):
        raise _wrong_bias()
    found: dict[str, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _wrong_bias()
        token, bias = pair
        is_text_id = isinstance(token, str) and token.isascii() and token.isdigit()
        if not (is_text_id or type(token) is int):
            raise _wrong_bias()
        if bias is not False and type(bias) not in (int, float):
            raise _wrong_bias()
        found[str(token)] = _NEVER if bias is False else float(bias)
    return found


def _wrong_bias() -> RequestError:
    return RequestError(
        "logit_bias must be a list of pairs like [15043, -1.5] or [15043, false], or an object "
        "from token ids to numbers; /tokenize tells the ids of a text.",
        param="logit_bias",
    )
