from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.prefix_index import PrefixIndex, unshared_tokens
from twostroke.engine.sequence import Sequence
from twostroke.engine.token_bytes import token_bytes


def sequence(prompt: list[int], answer: list[int] | None = None) -> Sequence:
    return Sequence("a", tuple(prompt), 1000, answer_ids=answer or [])


def test_a_running_row_stands_for_prompt_and_answer():
    index, running = PrefixIndex(), sequence([1, 2, 3], [4])
    index.hold(5, "", running)
    assert index.common(5, "", token_bytes([1, 2, 9])) == 2
    assert index.common(5, "", token_bytes([1, 2, 3, 4, 5])) == 4
    running.answer_ids.append(5)
    assert index.common(5, "", token_bytes([1, 2, 3, 4, 5])) == 5


def test_a_kept_row_stands_for_what_was_written_and_moves():
    index = PrefixIndex()
    index.hold(5, "", sequence([1, 2, 3], [4, 5]))
    index.keep(5, 4)
    prompt = token_bytes([1, 2, 3, 4, 5, 6])
    assert index.common(5, "", prompt) == 4
    index.move(5, 0)
    assert index.rows() == [0]
    assert index.common(0, "", prompt) == 4
    index.hold(0, "", sequence([1, 7]))
    assert index.common(0, "", prompt) == 1
    index.drop(0)
    index.drop(0)
    assert index.rows() == []


def test_scopes_never_mix():
    index = PrefixIndex()
    index.hold(0, "a", sequence([1, 2, 3]))
    index.hold(1, "b", sequence([1, 2, 3]))
    index.keep(1, 3)
    prompt = token_bytes([1, 2, 3])
    assert [index.common(row, "a", prompt) for row in (0, 1)] == [3, 0]
    assert [index.common(row, "b", prompt) for row in (0, 1)] == [0, 3]
    assert unshared_tokens(index.contents({0: 3, 1: 3})) == {0: 3, 1: 3}


def test_contents_are_cut_to_what_is_in_the_row():
    index = PrefixIndex()
    index.hold(0, "", sequence([1, 2, 3], [4]))
    assert index.contents({0: 2}) == {0: ("", token_bytes([1, 2]))}


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from([1, 256, 7]), max_size=6)),
    max_size=6,
)


@given(ROWS)
def test_unshared_tokens_are_those_that_no_other_row_begins_with(rows):
    contents = {row: (scope, token_bytes(ids)) for row, (scope, ids) in enumerate(rows)}
    expected = {}
    for row, (scope, ids) in enumerate(rows):
        shared = 0
        for other, (its_scope, its_ids) in enumerate(rows):
            if other != row and its_scope == scope:
                same = [a == b for a, b in zip(ids, its_ids, strict=False)]
                shared = max(shared, [*same, False].index(False))
        expected[row] = len(ids) - shared
    assert unshared_tokens(contents) == expected
