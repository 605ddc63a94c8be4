"""Settings that would make the simulator count to two thousand million."""

from __future__ import annotations

import json

import pytest

from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.broker_sim.exchange import ask, make_broker, request
from tests.helpers.fake_clock import FakeClock

MANY = (1 << 31) - 1


def create_topic() -> RemotingCommand:
    fields = {
        "topic": "huge",
        "defaultTopic": "TBW102",
        "readQueueNums": MANY,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def create_topics() -> RemotingCommand:
    body = {"topicConfigList": [{"topicName": "huge", "readQueueNums": 1, "writeQueueNums": MANY, "perm": 6}]}
    return request(18, body=json.dumps(body).encode())


def put_group() -> RemotingCommand:
    body = {"groupName": "huge", "retryQueueNums": MANY}
    return request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(body).encode())


@pytest.mark.parametrize("asked", [create_topic(), create_topics(), put_group()], ids=["17", "18", "200"])
def test_no_topic_gets_more_queues_than_can_be_listed(clock: FakeClock, asked: RemotingCommand) -> None:
    """A1: a later request for its statistics would never be answered."""
    answer = ask(make_broker(clock), asked)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert str(MANY) in (answer.remark or "")


def test_a_group_without_a_name_is_a_malformed_request(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A1: and no failure of the simulator."""
    answer = ask(make_broker(clock), request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"{}"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "groupName" in (answer.remark or "")
    assert not caplog.records
