"""Log lines about the errors of a listener."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from pyspark_rocketmq.listeners.errors import MOST_CHARACTERS, one_line, report_failure, report_problem


def refuse(text: str) -> None:
    raise ValueError(text)


def refuse_elsewhere(text: str) -> None:
    raise ValueError(text)


def raised(text: str, by: Callable[[str], None] = refuse) -> Exception:
    try:
        by(text)
    except ValueError as error:
        return error
    raise AssertionError


def test_the_traceback_of_an_error_is_reported_once_whichever_message_it_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D5: by type, text but for what differs from message to message, and place."""
    with caplog.at_level(logging.ERROR):
        for number in range(50):
            report_failure(
                "listener failed", f"queueOffset={number}", raised(f"order '{number}' of {number} is bad")
            )

    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.getMessage() == "listener failed queueOffset=0"


def test_an_error_is_reported_without_a_password(caplog: pytest.LogCaptureFixture) -> None:
    """A5, D5: a listener's database driver may repeat what it connects with."""
    error = RuntimeError("not looked up")
    error.__cause__ = raised("no route to postgresql://etl:hunter2@db/shop password=hunter2")

    line = report_failure("listener failed", "here", error)

    assert line == (
        "RuntimeError: not looked up (ValueError: no route to postgresql://***@db/shop password=***)"
    )
    assert "ValueError: no route to postgresql://***@db/shop password=***" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("other", [raised("no such thing"), raised("bad", refuse_elsewhere), KeyError("bad")])
def test_another_error_has_a_traceback_of_its_own(other: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """D5"""
    with caplog.at_level(logging.ERROR):
        report_failure("listener failed", "here", raised("bad"))
        report_failure("listener failed", "here", other)

    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_repeated_errors_are_counted_after_the_first_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5"""
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with caplog.at_level(logging.ERROR):
        for _ in range(12):
            report_problem("The listener returned None.", "queueOffset=7")
            now_s += 1

    assert [record.getMessage() for record in caplog.records] == [
        "The listener returned None. queueOffset=7",
        "10 times more, the last time queueOffset=7: The listener returned None.",
    ]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise TypeError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("order\n\x1b[31m7\r\n  is \u202ebad"), "ValueError: order [31m7 is bad"),
        (ValueError(), "ValueError"),
        (Unspeakable(), "Unspeakable: its message cannot be read"),
    ],
)
def test_an_error_is_one_line_without_control_characters(error: Exception, line: str) -> None:
    """H9: it goes to the driver's log and to the terminal."""
    assert one_line(error) == line


def test_the_cause_of_an_error_is_in_its_line() -> None:
    error = ValueError("not opened")
    error.__cause__ = OSError("refused")

    assert one_line(error) == "ValueError: not opened (OSError: refused)"


def test_causes_that_go_in_a_circle_are_shown_once_each() -> None:
    """H9: users' code makes the errors."""
    error, other = ValueError("not opened"), OSError("refused")
    error.__cause__, other.__cause__ = other, error

    assert one_line(error) == "ValueError: not opened (OSError: refused)"


def test_any_number_of_causes_is_one_line() -> None:
    """H9"""
    error = ValueError("0")
    for number in range(1, 5_000):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer

    assert one_line(error).startswith("ValueError: 4999 (ValueError: 4998 (")


def test_a_long_text_is_cut() -> None:
    """H9"""
    line = one_line(ValueError("x" * 10_000_000))

    assert len(line) == MOST_CHARACTERS
    assert line.endswith("x…")
