"""What followed the last time is what is guessed."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.drafts import MAX_SLOTS, Drafter


def test_what_followed_the_longest_match_is_guessed():
    drafter = Drafter(64)
    drafter.extend([1, 2, 3, 4, 7, 9, 2, 3, 5, 8, 1, 2, 3])
    assert drafter.match_tokens == 3  # 1 2 3, although 2 3 stood later as well
    assert drafter.next_token == 4
    assert drafter.draft(3) == (4, 7, 9)


def test_nothing_is_guessed_from_a_single_token_or_from_nothing():
    drafter = Drafter(64)
    assert drafter.draft(4) == ()
    drafter.extend([1, 2, 3, 9, 2])
    assert (drafter.draft(4), drafter.next_token) == ((), None)


def test_a_match_grows_while_its_guesses_are_right_and_ends_with_a_wrong_one():
    drafter = Drafter(64)
    drafter.extend([5, 6, 7, 8, 9, 10, 11, 0, 5, 6])
    lengths = []
    for token_id in (7, 8, 9, 3):
        lengths.append(drafter.match_tokens)
        drafter.add(token_id)
    assert lengths == [2, 3, 4, 5]
    assert drafter.match_tokens == 0


def test_a_loop_is_drafted_as_a_loop():
    drafter = Drafter(64)
    drafter.extend([9, 1, 2, 3, 1, 2, 3])
    assert drafter.draft(8) == (1, 2, 3, 1, 2, 3, 1, 2)


def test_skipped_tokens_count_but_are_not_found():
    drafter = Drafter(64)
    drafter.skip(100)
    drafter.extend([1, 2, 3, 1, 2])
    assert len(drafter) == 105
    assert drafter.next_token == 3


def test_memory_is_bounded_by_the_tables():
    drafter = Drafter(10**9)
    assert sum(len(table) for table in drafter._tables.values()) == 3 * MAX_SLOTS


@given(st.lists(st.integers(0, 5), max_size=80), st.integers(1, 12))
def test_a_match_is_true_and_its_draft_what_followed(token_ids, max_tokens):
    drafter = Drafter(100)
    for end, token_id in enumerate(token_ids, 1):
        drafter.add(token_id)
        said, length = token_ids[:end], drafter.match_tokens
        pairs = list(itertools.pairwise(said))
        if not length:
            continue  # another n-gram may have taken the slot
        assert pairs[-1] in pairs[:-1]
        source = drafter._source
        assert said[source - length : source] == said[end - length :]
        whole = said[source:]
        while len(whole) < max_tokens:
            whole = whole + said[source:]
        assert drafter.draft(max_tokens) == tuple(whole[:max_tokens])


@given(st.lists(st.integers(0, 9), min_size=3, max_size=30))
def test_what_is_said_twice_is_found_in_large_tables(token_ids):
    drafter = Drafter(2**14)
    drafter.extend([*token_ids, 77, *token_ids])
    assert drafter.match_tokens >= min(3, len(token_ids))
    assert drafter.next_token is not None


def test_a_prediction_is_followed_from_its_beginning_and_ends_with_it():
    drafter = Drafter(64, prediction=[11, 12, 13, 14])
    assert (len(drafter), drafter.draft(4)) == (0, ())
    drafter.extend([1, 2, 3])
    assert len(drafter) == 3
    drafter.follow_prediction()
    assert drafter.draft(8) == (11, 12, 13, 14)
    for token_id in (11, 12, 13):
        assert drafter.next_token == token_id
        drafter.add(token_id)
    drafter.add(14)
    assert (drafter.next_token, drafter.draft(4)) == (None, ())


def test_a_prediction_is_found_again_behind_what_it_did_not_say():
    drafter = Drafter(64, prediction=[11, 12, 13, 14, 15, 16])
    drafter.extend([1, 2])
    drafter.follow_prediction()
    drafter.extend([11, 99, 13, 14])
    assert drafter.draft(8) == (15, 16)


def test_nothing_follows_on_a_prediction_but_the_answer():
    drafter = Drafter(64, prediction=[11, 12])
    drafter.extend([1, 11, 12])
    assert drafter.draft(2) == (), "the prompt does not follow on the prediction"
    drafter.extend([5, 11, 12])
    assert drafter.draft(1) == (5,)
