"""Several answers to one prompt, for people who write Python."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

from twostroke.errors import RequestError
from twostroke.model import Model

OpenModel = Callable[..., Model]


def test_several_choices_are_those_of_seeds_that_follow_each_other(model: Model) -> None:
    given = {"temperature": 1.5, "seed": 7, "max_tokens": 12}
    with model.choices("ab", 3, **given) as choices:
        index, token = next(choices)
        assert (index, token.index) == (0, 0)
        several = choices.complete()
    alone = [model.complete("ab", **{**given, "seed": 7 + i}) for i in range(3)]
    assert [each.text for each in several] == [each.text for each in alone]
    assert len({each.text for each in several}) > 1
    assert [each.token_ids for each in several] == [each.token_ids for each in alone]


@pytest.mark.parametrize("n", [0, 129, True, "2"])
def test_a_wrong_number_of_choices_is_refused(model: Model, n: Any) -> None:
    with pytest.raises(RequestError, match="from 1 to 128") as caught:
        model.choices("ab", n)
    assert caught.value.param == "n"


def test_leaving_choices_early_ends_all_of_them(open_model: OpenModel) -> None:
    model = open_model(options={"step_delay_s": 0.002})
    for _ in model.choices("a" * 200, 2):
        break
    gc.collect()
    end = time.monotonic() + 60
    while model.engine.stats().num_aborted < 2:
        assert time.monotonic() < end
        time.sleep(0.005)
