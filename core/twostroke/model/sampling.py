"""A request's sampling values, checked and laid over the operator's and the model's own."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from twostroke.errors import RequestError
from twostroke.types import SamplingParams, TokenId

MAX_STOPS = 64
MAX_STOP_CHARS = 4_096
MAX_BIAS = 100.0
MAX_LOGPROBS = 20

_Check = Callable[[str, Any], Any]
NAMES = tuple(item.name for item in dataclasses.fields(SamplingParams))


# What a model gets that recommends no temperature: at 1.0, which is a model's distribution as it
# is, small and quantised models wander off.
UNADVISED: Mapping[str, Any] = MappingProxyType({"temperature": 0.7})


def build_sampling(
    given: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any],
    vocab_size: int,
    context_tokens: int,
    control_ids: Mapping[str, TokenId] = MappingProxyType({}),
) -> SamplingParams:
    """`given` over the model's `defaults` over those of `SamplingParams`; None counts as silence.

    `max_tokens` above the context means the context. `top_k` -1 is off, as other servers have it.
    A `seed` may be any 64-bit number, with or without a sign. A `stop` that is the text of a
    control token (`control_ids`) also stops at the token, which never shows as text.

    Raises:
        RequestError: naming the value at fault in `param`.
    """
    checks: dict[str, _Check] = {
        "min_tokens": lambda name, value: min(_integer(name, value), context_tokens),
        "max_tokens": lambda name, value: min(_integer(name, value), context_tokens),
        "top_k": lambda name, value: min(_top_k(name, value), vocab_size),
        "logit_bias": partial(_bias, vocab_size=vocab_size),
        "seed": _seed,
        "stop": _stops,
        "stop_ids": partial(_ids, vocab_size=vocab_size),
        "ignore_eos": _flag,
        "logprobs": _num_top,
        "prompt_logprobs": _num_top,
    }
    for name in given:
        if name not in NAMES:
            raise _unknown(name)
    spoken = {name: value for name, value in given.items() if value is not None}
    values: dict[str, Any] = {}
    for name, value in {**defaults, **spoken}.items():
        check: _Check = checks.get(name) or _number
        values[name] = check(name, value)
    written_out = {control_ids[stop] for stop in values.get("stop", ()) if stop in control_ids}
    if written_out:
        values["stop_ids"] = values.get("stop_ids", frozenset()) | written_out
    try:
        return SamplingParams(**values)
    except ValueError as error:
        raise RequestError(str(error), param=str(error).split()[0]) from None


def _unknown(name: str) -> RequestError:
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(NAMES)}"
    return RequestError(f"{name!r} is not a sampling parameter; {hint}", param=name)


def _number(name: str, value: Any) -> float:
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name} must be a number, not {_shown(value)}", param=name)
    try:
        return float(number)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf if number > 0 else -math.inf


def _integer(name: str, value: Any, low: int = 0) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} must be a whole number, not {_shown(value)}", param=name)
    number = int(value)
    if number < low:
        raise RequestError(f"{name} must be {low} or more, not {_shown(number)}", param=name)
    return number


def _top_k(name: str, value: Any) -> int:
    return max(_integer(name, value, low=-1), 0)


def _num_top(name: str, value: Any) -> int:
    count = _integer(name, value)
    if count > MAX_LOGPROBS:
        raise RequestError(f"{name} must be 0 to {MAX_LOGPROBS}, not {_shown(count)}", param=name)
    return count


def _seed(name: str, value: Any) -> int:
    seed = _integer(name, value, low=-(2**63))
    if seed >= 2**64:
        raise RequestError(f"{name} must be a number of 64 bits", param=name)
    return seed % 2**64


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, not {_shown(value)}", param=name)
    return value


def _stops(name: str, value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) for stop in stops):
        raise RequestError(f"{name} must be a string or a list of strings", param=name)
    if "" in stops:
        raise RequestError(f"{name} must not hold an empty string", param=name)
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise RequestError(
            f"{name} may hold {MAX_STOPS} strings of {MAX_STOP_CHARS:,} characters", param=name
        )
    return tuple(stops)


def _ids(name: str, value: Any, vocab_size: int) -> frozenset[TokenId]:
    if isinstance(value, str) or not isinstance(value, Sequence | frozenset | set):
        raise RequestError(f"{name} must be a list of token ids", param=name)
    return frozenset(_id(name, item, vocab_size) for item in value)


def _bias(name: str, value: Any, vocab_size: int) -> dict[TokenId, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} must map token ids to numbers", param=name)
    biases = {}
    for key, amount in value.items():
        bias = _number(f"{name}[{_shown(key)}]", amount)
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise RequestError(
                f"{name}[{_shown(key)}] must be from {-MAX_BIAS:g} to {MAX_BIAS:g}, not {bias:g}",
                param=name,
            )
        biases[_id(name, key, vocab_size)] = bias
    return biases


def _id(name: str, value: Any, vocab_size: int) -> TokenId:
    token_id = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        token_id = int(value)  # JSON objects have strings for keys
    if isinstance(token_id, bool) or not isinstance(token_id, Integral):
        raise RequestError(f"{name}: {_shown(value)} is not a token id", param=name)
    number = int(token_id)
    if not 0 <= number < vocab_size:
        raise RequestError(
            f"{name}: {_shown(value)} is outside of the vocabulary; ids go from 0 to "
            f"{vocab_size - 1}",
            param=name,
        )
    return number


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"  # some are too long for Python to print
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
