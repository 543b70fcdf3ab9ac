from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twostroke.engine.token_bytes import common_tokens, first_ids, num_ids, token_bytes

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=90)


def count_common(first: list[int], second: list[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


@given(IDS, IDS, IDS)
def test_the_common_prefix_is_what_a_loop_finds(prefix, first, second):
    one, other = prefix + first, prefix + second
    assert common_tokens(token_bytes(one), token_bytes(other)) == count_common(one, other)


@given(st.integers(1, 3000), st.data())
def test_a_single_difference_is_found_wherever_it_is(length, data):
    place = data.draw(st.integers(0, length - 1))
    ids = [7] * length
    changed = [*ids]
    changed[place] += data.draw(st.sampled_from([1, 256, 65536, 2**24]))
    assert common_tokens(token_bytes(ids), token_bytes(changed)) == place
    assert common_tokens(token_bytes(ids), token_bytes([*ids, 1])) == length


@given(IDS, st.integers(0, 100))
def test_bytes_are_cut_at_ids(ids, num_tokens):
    cut = first_ids(token_bytes(ids), num_tokens)
    assert cut == token_bytes(ids[:num_tokens])
    assert num_ids(cut) == min(len(ids), num_tokens)
