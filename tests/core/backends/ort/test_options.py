from __future__ import annotations

import pytest

from twostroke.backends.ort import Option, check_options
from twostroke.errors import BackendError

OPTIONS = (
    Option("threads", int, "how many", low=1, high=8),
    Option("spinning", bool, "wait actively", True),
    Option("share", float, "how much", 0.5, low=0),
    Option("mode", str, "which", "fast", choices=("fast", "small")),
)


def test_defaults_are_filled_in():
    assert check_options("cpu", {}, OPTIONS) == {
        "threads": None,
        "spinning": True,
        "share": 0.5,
        "mode": "fast",
    }
    given = {"threads": 8, "spinning": False, "share": 1, "mode": "small"}
    assert check_options("cpu", given, OPTIONS) == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"thread": 2},
            "no option 'thread' (did you mean 'threads'?); the allowed ones are threads",
        ),
        ({"zzz": 2}, "no option 'zzz'; the allowed ones are threads, spinning, share, mode"),
        ({"threads": 0}, "threads must be a whole number from 1 up to 8, not 0"),
        ({"threads": 9}, "not 9"),
        ({"threads": "2"}, "not '2'"),
        ({"threads": True}, "not True"),
        ({"threads": 2.0}, "not 2.0"),
        ({"spinning": 1}, "spinning must be true or false, not 1"),
        ({"share": -0.1}, "share must be a number from 0, not -0.1"),
        ({"share": float("nan")}, "not nan"),
        ({"mode": "slow"}, "mode must be one of fast, small, not 'slow'"),
        ({1: 2}, "no option 1"),
    ],
)
def test_wrong_options_are_named_with_what_is_allowed(given, said):
    with pytest.raises(BackendError) as caught:
        check_options("cpu", given, OPTIONS)
    assert said in str(caught.value)
    assert "'cpu'" in str(caught.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(BackendError) as caught:
        check_options("cpu", {"threads": 0, "mode": "slow", "other": 1}, OPTIONS)
    assert all(word in str(caught.value) for word in ("threads", "mode", "'other'"))


def test_a_backend_without_options_says_none():
    with pytest.raises(BackendError, match="the allowed ones are none"):
        check_options("cpu", {"a": 1}, ())
