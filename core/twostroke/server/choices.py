"""How many answers one request may ask for, and what is wrong with one of them."""

from __future__ import annotations

from typing import Any

from twostroke.errors import RequestError
from twostroke.model.choices import MAX_CHOICES, check_n


def num_choices(n: Any, best_of: Any = None) -> int:
    """`n` of a body, 1 for None; `best_of` may say the same number.

    Raises:
        RequestError: it is out of range, or `best_of` is another one.
    """
    number = check_n(1 if n is None else n)
    if best_of is not None and (type(best_of) is not int or best_of != number):
        raise RequestError(
            "best_of may only equal n: answers are not ranked.",
            param="best_of",
            code="unsupported_parameter",
        )
    return number


def check_total(num_prompts: int, n: int) -> None:
    """Checks how many answers all prompts ask for together.

    Raises:
        RequestError: more than MAX_CHOICES.
    """
    if num_prompts * n > MAX_CHOICES:
        of_each = "one answer each" if n == 1 else f"{n} answers each"
        raise RequestError(
            f"{num_prompts} prompts with {of_each} are {num_prompts * n} answers; one request may "
            f"ask for {MAX_CHOICES}. Send several requests: they are batched all the same.",
            param="prompt",
        )


def of_prompt(number: int, error: RequestError) -> RequestError:
    """`error`, of one prompt among several."""
    param = (error.param or "prompt").replace("prompt", f"prompt[{number}]", 1)
    return RequestError(
        f"Prompt {number} of the list: {error}", param=param, code=error.code, status=error.status
    )
