"""JSON can carry halves of characters; no tokenizer can."""

from __future__ import annotations

from twostroke.errors import RequestError


def check_unicode(text: str, param: str | None = None) -> None:
    """Refuses text that holds half of a surrogate pair (a cut emoji, mostly).

    Raises:
        RequestError: with the position; `param` is passed on.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{param} is" if param else "the text is"
        raise RequestError(
            f"{where} not valid Unicode: half of a surrogate pair "
            f"(U+{ord(text[error.start]):04X}) at character {error.start}; send whole characters",
            param=param,
        ) from None
