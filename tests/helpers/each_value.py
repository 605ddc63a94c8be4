"""Leaves cases of tests with Spark to ``make long-test``: those whose values all occur in other cases."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set

import pytest


def leave_to_long(items: Iterable[pytest.Item]) -> None:
    """Mark cases of the Spark tests among ``items`` as long; of each test enough stay for all its values.

    A test of two modes, two listeners and two backends has eight cases, each with several seconds of Spark.
    Two of them have each mode, each listener and the real RocketMQ, which shows more than the simulator.
    """
    of_tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        has_spark = item.get_closest_marker("spark") or item.get_closest_marker("driver")
        is_short = has_spark and not item.get_closest_marker("long")
        if is_short and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            of_tests.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in of_tests.values():
        is_on_both = any(case.get_closest_marker("real") for case in cases)
        # The id of a case has one part for each decorator and fixture with parameters.
        ids = [frozenset(enumerate(case.callspec._idlist)) for case in cases]
        kept = covering(
            [{each for each in of_case if not (is_on_both and each[1] == "sim")} for of_case in ids]
        )
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.long)


def covering(cases: Sequence[Set[Hashable]]) -> set[int]:
    """Return the numbers of enough ``cases`` that each of their values occurs; earlier ones first."""
    left = set().union(*cases)
    chosen: set[int] = set()
    while left:
        best = max(range(len(cases)), key=lambda number: (len(cases[number] & left), -number))
        chosen.add(best)
        left -= cases[best]
    return chosen
