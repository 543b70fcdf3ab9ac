"""A text becomes windows: every token is scored once, behind as much context as there is."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.errors import RequestError
from twostroke.evaluation.windows import NEW_TOKENS, WINDOW_TOKENS, cut, read_text


def scored(windows):
    return [i for window in windows for i in window.ids[window.num_context :]]


@given(
    num_ids=st.integers(2, 2000),
    num_tokens=st.integers(2, 2000),
    context_tokens=st.integers(3, 700),
    has_bos=st.booleans(),
)
def test_every_token_is_scored_once_in_order(num_ids, num_tokens, context_tokens, has_bos):
    ids = list(range(10, 10 + num_ids))
    bos_id = 1 if has_bos else None
    windows = cut(ids, bos_id=bos_id, context_tokens=context_tokens, num_tokens=num_tokens)
    wanted = ids[:num_tokens]
    assert scored(windows) == (wanted if has_bos else wanted[1:])
    for window in windows:
        assert window.num_context >= 1
        assert 0 < window.num_scored == len(window.ids) - window.num_context
        assert len(window.ids) <= min(WINDOW_TOKENS, context_tokens)
        own = window.ids[1:] if has_bos else window.ids
        assert list(own) == ids[own[0] - 10 : own[0] - 10 + len(own)]
        assert (window.ids[0] == 1) == has_bos


def test_all_but_the_first_window_have_half_of_it_as_context():
    first, *rest = cut(list(range(2000)), bos_id=None, context_tokens=4096, num_tokens=2000)
    assert (len(first.ids), first.num_context) == (WINDOW_TOKENS, 1)
    assert {len(window.ids) for window in rest} == {WINDOW_TOKENS}
    assert all(window.num_context >= WINDOW_TOKENS - NEW_TOKENS for window in rest)


@pytest.mark.parametrize("ids", [[], [5]])
def test_nothing_to_predict_is_refused(ids):
    with pytest.raises(RequestError, match=f"nothing to predict in {len(ids)} tokens"):
        cut(ids, bos_id=None, context_tokens=64, num_tokens=100)


def test_one_token_behind_bos_is_something():
    assert [w.ids for w in cut([5], bos_id=1, context_tokens=64, num_tokens=100)] == [(1, 5)]


def test_a_text_is_read_with_its_hash_and_without_its_folder(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\n")
    text = read_text(path)
    assert (text.name, text.content) == ("prose.txt", "naïve\r\n")
    assert text.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_no_text_is_refused_by_name(tmp_path):
    path = tmp_path / "picture.png"
    with pytest.raises(RequestError, match=r"picture\.png cannot be read: No such file"):
        read_text(path)
    path.write_bytes(b"ab\xff")
    with pytest.raises(RequestError, match=r"picture\.png is not UTF-8 \(byte 2\)"):
        read_text(path)
