"""Who is next: priorities, shares of scopes, and what bounds a wait."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.sequence import Sequence
from twostroke.engine.waiting import OLDEST_TURN, Waiting


def sequence(name: str, scope: str = "", priority: int = 0, num_tokens: int = 10) -> Sequence:
    return Sequence(name, (1,), num_tokens, scope=scope, priority=priority)


def admit(waiting: Waiting) -> Sequence:
    due = waiting.due
    assert due is not None
    waiting.admit(due)
    return due


def order(waiting: Waiting) -> list[str]:
    return [admit(waiting).request_id for _ in range(len(waiting))]


def queue(*sequences: Sequence) -> Waiting:
    waiting = Waiting()
    for one in sequences:
        waiting.add(one)
    return waiting


def test_equals_are_served_in_order_of_arrival():
    assert order(queue(*map(sequence, "abcdefghij"))) == list("abcdefghij")


def test_lower_numbers_are_served_sooner():
    waiting = queue(sequence("a", priority=1), sequence("b"), sequence("c", priority=-1))
    assert order(waiting) == ["c", "b", "a"]


def test_a_flood_of_one_scope_leaves_every_other_turn_to_another():
    waiting = queue(*(sequence(f"a{n}", "flood") for n in range(20)))
    for number in range(3):
        waiting.add(sequence(f"b{number}", "other"))
    served = [admit(waiting).scope for _ in range(6)]
    assert Counter(served) == {"flood": 3, "other": 3}


def test_shares_are_of_tokens_not_of_requests():
    waiting = queue(*(sequence(f"a{n}", "large", num_tokens=30) for n in range(9)))
    for number in range(9):
        waiting.add(sequence(f"b{number}", "small", num_tokens=10))
    served = Counter(admit(waiting).scope for _ in range(7))
    assert 3 * served["large"] - served["small"] in range(-3, 4)


def test_nobody_saves_up_a_share_while_nothing_waits():
    waiting = queue(*(sequence(f"a{n}", "busy") for n in range(12)))
    for _ in range(6):
        admit(waiting)
    for number in range(6):
        waiting.add(sequence(f"b{number}", "late"))
    assert Counter(admit(waiting).scope for _ in range(6)) == {"busy": 3, "late": 3}


def test_a_stream_of_urgent_ones_does_not_starve_what_has_waited():
    waiting = queue(sequence("patient", priority=5))
    for number in range(OLDEST_TURN):
        waiting.add(sequence(f"urgent{number}"))
        if admit(waiting).request_id == "patient":
            return
    raise AssertionError("the patient one still waits")


def test_one_that_leaves_costs_its_scope_nothing():
    leaving = sequence("gone", "a", num_tokens=1000)
    waiting = queue(leaving, sequence("a", "a"), sequence("b", "b"))
    waiting.remove(leaving)
    assert order(waiting) == ["a", "b"]


@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-2, 2), st.integers(1, 50)) | st.none(),
        max_size=120,
    )
)
def test_everybody_is_admitted_within_the_bound(arrivals):
    """None admits the next one; all others arrive, with a scope, a priority and a size."""
    waiting = Waiting()
    before: dict[str, int] = {}  # by name: how many it found waiting, itself included
    num_admitted: dict[str, int] = {}  # by name: admissions up to its arrival
    count = 0
    for number, arrival in enumerate([*arrivals, *[None] * len(arrivals)]):
        if arrival is not None:
            scope, priority, num_tokens = arrival
            name = str(number)
            waiting.add(sequence(name, scope, priority, num_tokens))
            before[name], num_admitted[name] = len(waiting), count
        elif len(waiting):
            name = admit(waiting).request_id
            count += 1
            assert count - num_admitted[name] <= OLDEST_TURN * before[name]
    assert not len(waiting)


def test_the_order_shown_is_by_priority_then_by_what_a_scope_was_given_then_by_arrival():
    waiting = Waiting()
    greedy = sequence("greedy", scope="a")
    waiting.add(greedy)
    waiting.admit(greedy)
    later = [
        sequence("third", scope="a"),
        sequence("second", scope="b"),
        sequence("first", scope="a", priority=-1),
    ]
    for each in later:
        waiting.add(each)
    assert [s.request_id for s in waiting.in_order()] == ["first", "second", "third"]
