"""Errors that Spark shows to users: the sentence, and no frames of ours above it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator

import pytest

from pyspark_rocketmq.errors import (
    ChannelClosed,
    LocalProtocolError,
    OptionError,
    RocketMQError,
    SchemaError,
    TopicNotFound,
    TransportError,
    error_of_worker,
    without_frames,
)

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 3630, in main
    handle_worker_exception(e, outfile)
{error}
"""


def look() -> None:
    try:
        [].pop()
    except IndexError as error:
        raise SchemaError("Column a is missing. Add it.") from error


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_an_error_of_ours_leaves_without_frames_and_causes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pyspark_rocketmq"), pytest.raises(SchemaError) as caught:
        without_frames(look)()

    text = shown(caught.value)
    assert "Column a is missing. Add it." in text
    assert "in look" not in text
    assert "IndexError" not in text
    assert "in look" in caplog.text, "level DEBUG has the frames"


def test_a_generator_s_error_leaves_without_frames_behind_its_rows() -> None:
    @without_frames
    def rows() -> Iterator[int]:
        yield 1
        look()

    got: list[int] = []
    with pytest.raises(SchemaError) as caught:
        got.extend(rows())

    assert "in look" not in shown(caught.value)


def test_a_generator_that_is_closed_early_closes_what_it_wraps() -> None:
    closed = []

    @without_frames
    def rows() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    some = rows()
    next(some)
    some.close()  # type: ignore[attr-defined]

    assert closed == [True]


@pytest.mark.parametrize("error", [ValueError("no"), LocalProtocolError("no")], ids=["foreign", "bug"])
def test_a_bug_keeps_its_frames(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        without_frames(fail)()

    assert "in fail" in shown(caught.value)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (SchemaError("Column a is missing."), "pyspark_rocketmq.errors.SchemaError: Column a is missing.\n"),
        (
            OptionError(("one is wrong", "two is wrong")),
            "pyspark_rocketmq.errors.OptionError: Invalid RocketMQ options:\n  - one is wrong\n  - two is wrong\n",
        ),
    ],
    ids=["a sentence", "a list"],
)
@pytest.mark.parametrize(
    "end", ["", "\n SQLSTATE: 39000\n", "\n\nJVM stacktrace:\norg.apache.spark.SparkException: a: b\n\tat c"]
)
def test_only_the_error_at_the_end_of_a_worker_s_traceback_is_shown(
    error: RocketMQError, shown: str, end: str
) -> None:
    text = WORKER.format(error="".join(traceback.format_exception_only(error)).rstrip()) + end

    found = error_of_worker(text)

    assert isinstance(found, RocketMQError)
    assert "".join(traceback.format_exception_only(found)) == shown


def test_a_server_s_pointer_to_its_questions_does_not_stand_between_two_sentences() -> None:
    remark = "No topic route info in name server for the topic: ordres\nSee https://rocketmq.apache.org/06FAQ for further details."

    text = str(TopicNotFound(17, remark, request="GET_ROUTEINFO_BY_TOPIC", address="10.0.0.1:9876"))

    assert "for the topic: ordres. " in text
    assert "06FAQ" not in text


def test_a_sentence_after_a_server_s_pointer_to_its_questions_begins_after_a_full_stop() -> None:
    remark = "No topic route info for: ordres\nSee https://rocketmq.apache.org/06FAQ for further details. It is away."

    assert "for: ordres. It is away. Create the topic" in str(TopicNotFound(17, remark))


def test_the_text_of_a_broken_connection_is_a_sentence() -> None:
    """Other sentences follow it, as in the error of an offset at the brokers."""
    assert str(TransportError("a:1", "start the master")).endswith("failed: start the master.")
    assert str(ChannelClosed("a:1", "it ended. Check useTls.")).endswith("closed: it ended. Check useTls.")


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: could not convert",
        "pyspark_rocketmq.errors.LocalProtocolError: a bug",
        "ValueError: pyspark_rocketmq.errors.SchemaError: quoted",
        "pyspark_rocketmq.errors.SchemaError: a\n\nThe above exception was the direct cause of:\n\nValueError: b",
    ],
)
def test_other_ends_of_a_worker_s_traceback_stay_as_they_are(error: str) -> None:
    assert error_of_worker(WORKER.format(error=error)) is None
