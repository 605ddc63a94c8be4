"""One value ahead of the caller, none kept, and no thread left behind."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator

import pytest

from pyspark_rocketmq.source.prefetch import prefetch
from tests.helpers.wait import PATIENCE_S


class Value:
    """Something that a weak reference can point to."""


def test_values_come_in_order_and_then_the_end() -> None:
    assert list(prefetch((number for number in range(1000)), name="ahead")) == list(range(1000))


def test_an_error_comes_where_the_value_would_have_come() -> None:
    def made() -> Generator[int]:
        yield 1
        yield 2
        raise LookupError("no third")

    values = prefetch(made(), name="ahead")
    assert [next(values), next(values)] == [1, 2]
    with pytest.raises(LookupError, match="no third"):
        next(values)


def test_the_next_is_made_while_the_caller_has_one_and_no_more_than_that() -> None:
    has_begun = [threading.Event() for _ in range(5)]

    def made() -> Generator[int]:
        for number, event in enumerate(has_begun):
            event.set()
            yield number

    values = prefetch(made(), name="ahead")
    for number in range(3):
        assert next(values) == number
        # One waits to be taken, and the one after it is being made.
        assert has_begun[number + 2].wait(PATIENCE_S)
        assert not any(event.is_set() for event in has_begun[number + 3 :])
    values.close()


def test_leaving_early_ends_the_thread_and_closes_the_generator_in_it() -> None:
    closed_by = []

    def made() -> Generator[int]:
        try:
            yield from range(1000)
        finally:
            closed_by.append(threading.current_thread().name)

    values = prefetch(made(), name="ahead of a test")
    assert next(values) == 0
    values.close()
    assert closed_by == ["ahead of a test"]
    assert not [thread for thread in threading.enumerate() if thread.name == "ahead of a test"]


def test_nothing_that_was_handed_over_is_kept() -> None:
    made = [Value() for _ in range(3)]
    alive = [weakref.ref(value) for value in made]

    def given() -> Generator[Value]:
        while made:
            yield made.pop(0)

    values = prefetch(given(), name="ahead")
    first = next(values)
    assert alive[0]() is first
    second = next(values)
    del first
    assert alive[0]() is None
    del second
    next(values)
    assert alive[1]() is None
    values.close()
