from __future__ import annotations

from twostroke.engine.row_worth import RowWorth


def test_of_rows_used_alike_the_cheapest_goes_and_of_equal_ones_the_oldest():
    worth = RowWorth()
    for row in (4, 2, 7):
        worth.use(row)
    assert worth.rows() == [4, 2, 7]
    assert worth.cheapest({4: 50, 2: 20, 7: 20}) == 2
    worth.use(2)
    assert worth.cheapest({4: 50, 2: 20, 7: 20}) == 7


def test_a_costly_row_that_nobody_uses_goes_in_the_end():
    worth = RowWorth()
    unshared = {0: 50, 1: 20}
    worth.use(0)
    for loss in (20, 40):  # rows of 20 tokens come and go
        worth.use(1)
        assert worth.cheapest(unshared) == 1
        worth.note_loss(1, unshared)
        worth.forget(1)
        assert worth._floor == loss
    worth.use(1)
    assert worth.cheapest(unshared) == 0


def test_a_row_that_moves_keeps_what_it_is_worth():
    worth = RowWorth()
    worth.use(0)
    worth.use(1)
    worth.move(0, 5)
    assert worth.rows() == [5, 1]
    assert worth.cheapest({5: 9, 1: 9}) == 5
