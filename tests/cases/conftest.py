"""The cases: faults that users of other servers met, each asked of a live server here.

A test says which case it belongs to with `@pytest.mark.cases(NUMBER)`; `make cases` runs those and
ends with a table of all cases. A case is right when all of its tests passed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import pytest

CASES = {
    1: "a stop string across two tokens",
    2: "emoji in a stream",
    3: "finish reasons",
    4: "half of a surrogate pair",
    5: "control tokens in a user's text",
    6: "one beginning-of-sequence token",
    7: "messages in parts",
    8: "a bias on an unknown token",
    9: "empty prompts",
    10: "temperatures that are none",
    11: "max_tokens that are none, or huge",
    12: "seeds, also in company",
    13: "an echoed prompt, scored, without an answer",
    14: "prompts as token ids, scored",
    15: "usage in streams",
    16: "model names with slash and colon",
    17: "prompts beyond the context",
    18: "memory of a long prompt",
    19: "memory over many requests",
    20: "a batch answers as each alone",
    21: "two graphs, one copy of the weights",
    22: "no copy of the cache in a step",
    23: "clients that go away",
    24: "a full queue",
    25: "hostile grammars",
    26: "a backend that cannot run here",
    27: "weights that are missing or broken",
    28: "graphs with other inputs",
    29: "several ids that end an answer",
    30: "a model without a chat template",
}


_ORDER = ("failed", "skipped", "passed")  # the worst of a case's tests is the case's status
_numbers: dict[str, int] = {}  # of each test
_outcomes: dict[str, str] = {}  # of each test that ran


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("cases"):
            _numbers[item.nodeid] = marker.args[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.nodeid in _numbers and (report.when == "call" or report.outcome != "passed"):
        _outcomes[report.nodeid] = report.outcome


def pytest_unconfigure(config: pytest.Config) -> None:
    """Prints the table behind everything else that a run prints."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not _outcomes or reporter is None:
        return
    tests: dict[int, list[str]] = defaultdict(list)
    for test in _outcomes:
        tests[_numbers[test]].append(test)
    reporter.ensure_newline()
    for line in table(CASES, tests, _outcomes):
        reporter.write_line(line)


def table(
    names: Mapping[int, str], tests: Mapping[int, list[str]], outcomes: Mapping[str, str]
) -> Iterable[str]:
    """A line for each case and test, and how many cases are right."""
    num_right = 0
    for number, name in names.items():
        found = tests.get(number, [])
        reached = [outcomes[test] for test in found]
        status = min(reached, key=_ORDER.index, default="not built")
        num_right += status == "passed"
        first, *others = sorted(map(_written, Counter(map(_function, found)).items())) or ["-"]
        yield f"{number:4}  {status:9}  {name:46}  {first}"
        yield from (f"{'':65}{other}" for other in others)
    yield f"cases: {num_right} of {len(names)}"


def _function(test: str) -> str:
    return (test.partition("tests/cases/")[2] or test).partition("[")[0]


def _written(counted: tuple[str, int]) -> str:
    function, num_tests = counted
    return f"{function} ({num_tests} ways)" if num_tests > 1 else function
