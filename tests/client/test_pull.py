from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.errors import BrokerError, ChannelClosed, RemoteProtocolError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.codes import PullSysFlag, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand, decode_frame
from pyspark_rocketmq.wire.requests.pull import (
    PullRequest,
    PullRequestTemplate,
    PullResult,
    PullStatus,
    pull_result,
)
from tests.helpers.golden import recorded_command

QUEUE = MessageQueue("orders", "broker-a", 3)
REQUEST = PullRequest(consumer_group="g", queue=QUEUE, queue_offset=17)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)


@given(
    request=st.builds(
        PullRequest,
        consumer_group=TEXT,
        queue=st.builds(MessageQueue, TEXT, TEXT, INT),
        queue_offset=LONG,
        max_msg_nums=INT,
        sys_flag=st.integers(0, 31),
        subscription=TEXT,
        sub_version=LONG,
        expression_type=st.sampled_from(["TAG", "SQL92"]),
        suspend_timeout_millis=LONG,
        commit_offset=LONG,
    ),
    opaque=st.integers(0, 2**31 - 1),
)
def test_the_quick_frame_is_the_command(request: PullRequest, opaque: int) -> None:
    """A1: the hand-made header says exactly what the codec would."""
    frame = request.encode(opaque)

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_frame(frame[4:]) == replace(request.command(), opaque=opaque)


@given(
    queue_offset=LONG,
    max_msg_nums=INT,
    opaque=st.integers(0, 2**31 - 1),
    subscription=TEXT,
    sys_flag=st.integers(0, 31),
)
def test_a_pull_of_a_series_is_the_pull_on_its_own(
    *, queue_offset: int, max_msg_nums: int, opaque: int, subscription: str, sys_flag: int
) -> None:
    """A1: also when the tags contain a percent sign."""
    like = replace(REQUEST, subscription=subscription + "%d", sys_flag=sys_flag, commit_offset=5)
    series = PullRequestTemplate(like)
    alone = replace(like, queue_offset=queue_offset, max_msg_nums=max_msg_nums)

    assert series.encode(queue_offset, max_msg_nums, opaque) == alone.encode(opaque)
    assert series.request(queue_offset, max_msg_nums) == alone


@pytest.mark.parametrize("pair_id", [22, 31, 39, 40, 143])
def test_a_pull_carries_the_fields_java_sends(pair_id: int) -> None:
    """A1: golden frames of the Java client."""
    java = decode_frame(recorded_command(pair_id).frame).ext_fields
    ours = REQUEST.command().ext_fields

    # maxMsgBytes is read by no broker, ReqT marks the request source for statistics.
    assert set(java) - set(ours) <= {"maxMsgBytes", "ReqT"}


def test_a_held_pull_says_for_how_long() -> None:
    """A1: only the SUSPEND bit lets the broker hold it."""
    held = replace(REQUEST, suspend_timeout_millis=15_000, sys_flag=PullSysFlag.SUSPEND)

    assert held.longest_hold_s == 20.0
    assert replace(held, sys_flag=PullSysFlag.SUBSCRIPTION).longest_hold_s == 0.0


def answer(code: int, **fields: str) -> RemotingCommand:
    return RemotingCommand(code=code, flag=1, ext_fields=fields, body=b"messages")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW_MSG),
        (20, PullStatus.NO_MATCHED_MSG),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_four_codes_are_outcomes(code: int, status: PullStatus) -> None:
    """F4, broker answers: each with the offsets the broker gave."""
    fields = {"suggestWhichBrokerId": "1", "nextBeginOffset": "49", "minOffset": "10", "maxOffset": "99"}

    assert pull_result(REQUEST, answer(code, **fields), "b:1") == PullResult(
        status=status,
        next_begin_offset=49,
        min_offset=10,
        max_offset=99,
        suggest_which_broker_id=1,
        body=b"messages",
    )


@pytest.mark.parametrize("pair_id", [31, 32, 33, 39, 40, 143])
def test_javas_answers_are_read(pair_id: int) -> None:
    """A1: golden frames of the Java broker."""
    java = decode_frame(recorded_command(pair_id, is_response=True).frame)
    result = pull_result(REQUEST, java, "b:1")

    assert isinstance(result, PullResult)
    assert result.next_begin_offset == int(java.ext_fields["nextBeginOffset"])


def test_every_other_code_is_an_error_that_says_where() -> None:
    """F3, broker answers: an error answer lacks offsets and is never an outcome."""
    error = pull_result(REQUEST, RemotingCommand(code=ResponseCode.INVALID_PARAMETER, flag=1), "b:1")

    assert isinstance(error, BrokerError)
    for part in ("b:1", "PULL_MESSAGE", "g", "topic=orders", "broker=broker-a", "queue=3", "queueOffset=17"):
        assert part in str(error)


@pytest.mark.parametrize("bad", [{}, {"nextBeginOffset": "x"}])
def test_an_outcome_without_offsets_is_nonsense(bad: dict[str, str]) -> None:
    """F3: a missing offset never becomes 0."""
    good = {"suggestWhichBrokerId": "0", "minOffset": "10", "maxOffset": "99"}
    error = pull_result(REQUEST, answer(0, **good, **bad), "b:1")

    assert isinstance(error, RemoteProtocolError)
    assert "nextBeginOffset" in str(error)


def test_a_failure_of_the_channel_is_passed_on() -> None:
    """F3: callbacks get errors as values."""
    failure = ChannelClosed("b:1", "gone")

    assert pull_result(REQUEST, failure, "b:1") is failure


def result_of(code: int, remark: str | None) -> PullResult:
    """Return an answer to a pull; the queue has offsets 10 to 99, and the next pull is to begin at 49."""
    fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "49", "minOffset": "10", "maxOffset": "99"}
    command = RemotingCommand(code=code, flag=1, ext_fields=fields, remark=remark)
    result = pull_result(REQUEST, command, "b:1")
    assert isinstance(result, PullResult)
    return result


@pytest.mark.parametrize(
    ("code", "remark", "asked", "reset", "first"),
    [
        pytest.param(21, "OFFSET_RESET", 20, 49, 10, id="a reset"),
        pytest.param(21, "OFFSET_RESET", 5, 49, 10, id="a reset of an offset that has expired"),
        pytest.param(21, "OFFSET_TOO_SMALL", 20, None, 49, id="tiered storage, which begins later"),
        pytest.param(21, "OFFSET_TOO_SMALL", 5, None, 49, id="expired"),
        pytest.param(21, "OFFSET_OVERFLOW_BADLY", 120, None, 10, id="behind the end"),
        pytest.param(21, None, 20, 49, 10, id="a reset, without a remark"),
        pytest.param(21, None, 5, None, 49, id="expired, without a remark"),
        pytest.param(0, "FOUND", 20, None, 10, id="messages"),
    ],
)
def test_only_a_reset_is_taken_for_one(
    code: int, remark: str | None, asked: int, reset: int | None, first: int
) -> None:
    """F5: tiered storage also moves offsets that are within the queue's bounds."""
    result = result_of(code, remark)

    assert result.reset_from(asked) == reset
    assert result.first_from(asked) == first


@pytest.mark.parametrize(
    ("code", "remark", "is_scanned"),
    [
        (20, "NO_MATCHED_MESSAGE", True),
        (20, "OFFSET_TOO_SMALL", False),
        (20, "OFFSET_OVERFLOW_BADLY", False),
        (20, "OFFSET_OVERFLOW_ONE", False),
        (20, "MESSAGE_WAS_REMOVING", False),
        (20, None, False),
        (19, "NO_MATCHED_MESSAGE", False),
        (0, "FOUND", False),
    ],
)
def test_the_remark_refines_the_code_of_a_slave(code: int, remark: str | None, is_scanned: bool) -> None:
    """L3: a slave answers 20 for whatever it does not have."""
    result = result_of(code, remark)

    assert result.scanned_in_vain is is_scanned
