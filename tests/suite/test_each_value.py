"""Cases left to the long tests: each value of each parameter stays in another case."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.helpers.driver_process import ENVIRONMENT
from tests.helpers.each_value import covering

MODES, LISTENERS, BACKENDS = ("micro-batch", "real time"), ("orderly", "concurrent"), ("sim", "real")


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ((MODES,), 2),
        ((MODES, LISTENERS), 2),
        ((MODES, LISTENERS, BACKENDS), 2),
        ((range(5), MODES), 5),
        ((range(3), range(4), MODES), 4),
    ],
)
def test_as_many_cases_stay_as_the_longest_parameter_has_values(
    values: tuple[tuple[str, ...], ...], kept: int
) -> None:
    cases = [frozenset(enumerate(case)) for case in product(*values)]

    chosen = covering(cases)

    assert len(chosen) == kept
    assert set().union(*(cases[number] for number in chosen)) == set().union(*cases)


def test_of_cases_that_are_no_product_each_value_stays() -> None:
    cases = [frozenset(each) for each in ({"a", "x"}, {"a", "y"}, {"b", "y"}, {"c", "z"}, {"c", "x"})]

    assert covering(cases) == {0, 2, 3}


_TESTS = """
import pytest

@pytest.mark.spark
@pytest.mark.parametrize("one", "ab")
@pytest.mark.parametrize("other", ["x", "y", pytest.param("z", marks=pytest.mark.long)])
def test_with_spark(one, other):
    pass

BOTH = [pytest.param("sim", marks=pytest.mark.sim), pytest.param("real", marks=pytest.mark.real)]

@pytest.mark.spark
@pytest.mark.parametrize("backend", BOTH)
def test_on_both(backend):
    pass

@pytest.mark.spark
@pytest.mark.parametrize("backend", BOTH[:1])
def test_on_one(backend):
    pass

@pytest.mark.parametrize("one", "ab")
@pytest.mark.parametrize("other", "xy")
def test_without(one, other):
    pass
"""


_CONFTEST = """
import pytest
from tests.helpers.each_value import leave_to_long

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    leave_to_long(items)
"""


def test_only_cases_with_spark_are_left_to_the_long_tests(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(_TESTS)
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  spark\n  driver\n  long\n  sim\n  real\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "not long",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
    ]

    shown = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout

    assert re.findall(r"::(.*)", shown) == [
        "test_with_spark[x-a]",
        "test_with_spark[y-b]",
        "test_on_both[real]",
        "test_on_one[sim]",
        "test_without[x-a]",
        "test_without[x-b]",
        "test_without[y-a]",
        "test_without[y-b]",
    ]
