import pytest

from twostroke.errors import RequestError
from twostroke.grammar import constraint_from
from twostroke.types import Constraint, ConstraintKind


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"regex": None, "json_object": False}, None),
        ({"json_object": True}, Constraint(ConstraintKind.JSON_OBJECT)),
        ({"regex": "a+"}, Constraint(ConstraintKind.REGEX, "a+")),
        ({"choice": ["é", "b"]}, Constraint(ConstraintKind.CHOICE, '["é", "b"]')),
        ({"json_schema": '{"const":1}'}, Constraint(ConstraintKind.JSON_SCHEMA, '{"const":1}')),
        (
            {"json_schema": {"z": 1, "a": 2}},  # properties are answered in the order they have
            Constraint(ConstraintKind.JSON_SCHEMA, '{"z": 1, "a": 2}'),
        ),
    ],
)
def test_constraints_as_people_write_them(given, expected):
    assert constraint_from(given) == expected


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"regex": "a", "choice": ["b"]}, "choice"),
        ({"regex": 5}, "regex"),
        ({"choice": "yes"}, "choice"),
        ({"choice": ["yes", 1]}, "choice"),
        ({"json_schema": [1]}, "json_schema"),
        ({"json_schema": {"const": float("nan")}}, "json_schema"),
        ({"json_object": "yes"}, "json_object"),
    ],
)
def test_what_is_no_constraint_is_refused_by_name(given, param):
    with pytest.raises(RequestError) as caught:
        constraint_from(given)
    assert caught.value.param == param


def test_a_schema_deeper_than_python_can_write_is_refused():
    deep = {}
    for _ in range(60_000):
        deep = {"a": deep}
    with pytest.raises(RequestError, match="too deeply"):
        constraint_from({"json_schema": deep})
    while deep:  # taken apart from the outside: freeing it whole would recurse
        deep = deep["a"]


def test_messages_use_the_clients_own_name():
    with pytest.raises(RequestError, match="guided_regex must be a string") as caught:
        constraint_from({"regex": 1}, {"regex": "guided_regex"})
    assert caught.value.param == "guided_regex"
