"""How many rounds a measurement has, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.tune.rounds import LEAST_ROUNDS, MOST_ROUNDS, in_turns


class Machine:
    """Each run takes `run_s` on its clock."""

    def __init__(self, run_s: float) -> None:
        self.now_s, self.run_s, self.order = 0.0, run_s, ""

    def contender(self, name: str) -> Callable[[], None]:
        def run() -> None:
            self.now_s += self.run_s
            self.order += name

        return run

    def rounds(self, seconds: float, busier: Callable[[], None] = lambda: None) -> int:
        contenders = {name: self.contender(name) for name in "ab"}

        def drop(names):
            busier()
            return ()

        return in_turns(contenders, seconds, lambda _: None, "x", drop, lambda: self.now_s)


def test_rounds_fill_the_time_and_begin_with_another_one_each():
    machine = Machine(1.0)
    assert machine.rounds(10.0) == 5
    assert machine.order == "ab" + "ab" + "ba" + "ab" + "ba" + "ab"
    assert Machine(1.0).rounds(1000.0) == MOST_ROUNDS
    assert Machine(1.0).rounds(0.1) == LEAST_ROUNDS


def test_rounds_end_with_the_time_where_the_machine_became_busier():
    machine = Machine(1.0)
    assert machine.rounds(16.0, lambda: setattr(machine, "run_s", 2.0)) == 4
    much = Machine(1.0)
    assert much.rounds(16.0, lambda: setattr(much, "run_s", 50.0)) == LEAST_ROUNDS
