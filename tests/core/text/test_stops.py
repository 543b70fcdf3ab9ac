from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.text import StopMatcher

FEW = st.text("ab", max_size=5)


def feed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        shown += text
        if is_stopped:
            return shown, True
    return shown + matcher.flush(), False


def cut(stops: list[str], text: str) -> tuple[str, bool]:
    """The rule in plain words: the first stop to be complete, the longest of several."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(stops=st.lists(FEW, max_size=4), pieces=st.lists(FEW, max_size=12))
@settings(max_examples=200, deadline=None)
def test_the_stop_that_was_found_is_told(stops: list[str], pieces: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        shown += matcher.push(piece)[0]
    if matcher.matched is None:
        assert not cut(stops, "".join(pieces))[1]
    else:
        assert matcher.matched in stops
        assert "".join(pieces).startswith(shown + matcher.matched)


@given(stops=st.lists(FEW, max_size=4), pieces=st.lists(FEW, max_size=12))
@settings(max_examples=400, deadline=None)
def test_the_cut_depends_on_the_text_alone(stops: list[str], pieces: list[str]) -> None:
    assert feed(stops, pieces) == cut(stops, "".join(pieces))


@given(stops=st.lists(FEW.filter(bool), min_size=1, max_size=4), pieces=st.lists(FEW, max_size=12))
@settings(max_examples=400, deadline=None)
def test_nothing_is_held_that_cannot_become_a_stop(stops: list[str], pieces: list[str]) -> None:
    matcher, pushed, shown = StopMatcher(stops), "", ""
    for piece in pieces:
        text, is_stopped = matcher.push(piece)
        pushed, shown = pushed + piece, shown + text
        if is_stopped:
            return
        held = pushed.removeprefix(shown)
        assert shown + held == pushed
        assert any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        (["\n\n"], ["one\n", "\ntwo"], "one"),
        (["</s>"], ["a<", "/", "s", ">b"], "a"),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["bc", "abcd"], ["abcd"], "a"),
        (["abc", "bc"], ["xabc"], "x"),
        (["👍🏽"], ["so 👍", "🏽!"], "so "),
    ],
)
def test_cuts_before_a_stop_across_tokens(stops: list[str], pieces: list[str], shown: str) -> None:
    assert feed(stops, pieces) == (shown, True)


def test_after_a_stop_nothing_is_shown() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""
