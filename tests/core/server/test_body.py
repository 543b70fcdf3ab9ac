import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.errors import RequestError
from twostroke.server.body import parse_object

REFUSED = {
    "empty": (b"", "empty"),
    "blank": (b" \n\t", "empty"),
    "not JSON": (b"prompt=hi", "not JSON"),
    "cut off": (b'{"prompt": "hi', "not JSON"),
    "a list": (b"[1]", "must be a JSON object"),
    "a string": (b'"hi"', "must be a JSON object"),
    "NaN": (b'{"temperature": NaN}', "NaN"),
    "Infinity": (b'{"temperature": Infinity}', "Infinity"),
    "minus Infinity": (b'{"temperature": -Infinity}', "-Infinity"),
    "overflow": (b'{"temperature": 1e400}', "1e400"),
    "negative overflow": (b'{"temperature": -1e400}', "-1e400"),
    "too many digits": (b'{"max_tokens": 1' + b"0" * 5000 + b"}", "too many digits"),
    "duplicate key": (b'{"prompt": "a", "prompt": "b"}', "'prompt' stands twice"),
    "nested duplicate key": (b'{"a": [{"b": 1, "b": 2}]}', "'b' stands twice"),
    "deep list": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
    "deep object": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "too deeply"),
    "latin-1": (b'{"prompt": "caf\xe9"}', "not UTF-8"),
    "utf-16": ('{"prompt": "hi"}'.encode("utf-16"), "not UTF-8"),
    "surrogate bytes": (b'{"prompt": "\xed\xa0\xbd"}', "not UTF-8"),
    "high surrogate": (rb'{"prompt": "\ud83d"}', "prompt holds half of a surrogate"),
    "low surrogate": (rb'{"prompt": "a\ude00b"}', "prompt holds half of a surrogate"),
    "swapped pair": (rb'{"prompt": "\ude00\ud83d"}', "prompt holds half of a surrogate"),
    "surrogate in a key": (rb'{"\ud83d": 1}', "key holds half of a surrogate"),
    "nested surrogate": (
        rb'{"messages": [{"role": "user", "content": "\ud83d"}]}',
        "messages[0].content holds half of a surrogate",
    ),
    "control character": (b'{"prompt": "a\x00b"}', "not JSON"),
}


@pytest.mark.parametrize(("data", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_strict_json_refuses_is_a_400(data, expected):
    with pytest.raises(RequestError) as caught:
        parse_object(data)
    assert expected in str(caught.value)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 300


def test_a_whole_surrogate_pair_is_a_character():
    assert parse_object(rb'{"prompt": "\ud83d\ude00"}') == {"prompt": "😀"}


def test_a_byte_order_mark_is_skipped():
    assert parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=6), _json, max_size=4))
def test_every_proper_object_is_read_as_it_is(value):
    for ascii_only in (True, False):
        try:
            data = json.dumps(value, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:
            continue
        assert parse_object(data) == value


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_request_error(data):
    with suppress(RequestError):
        assert isinstance(parse_object(data), dict)
