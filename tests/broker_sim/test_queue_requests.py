from __future__ import annotations

import pytest

from broker_sim.broker import Broker
from pyspark_rocketmq.model import MessageQueue, QueueBounds
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.requests.topics import decode_topic_stats
from tests.broker_sim.exchange import TOPIC, ask, make_broker, message, request
from tests.helpers.fake_clock import FakeClock

_QUEUE = MessageQueue(TOPIC, "broker-a", 0)
_START_MS = 1_700_000_000_000


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    broker = make_broker(clock, queues=2)
    for _ in range(3):  # stored at 0, 10 and 20 s
        broker.put(_QUEUE, [message()])
        clock.advance(10)
    return broker


def _create(**fields: object) -> dict[str, object]:
    defaults = {
        "topic": "new",
        "defaultTopic": "TBW102",
        "readQueueNums": 3,
        "writeQueueNums": 5,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    return {**defaults, **fields}


def test_a_topic_is_made_and_changed_by_request(broker: Broker) -> None:
    assert ask(broker, request(RequestCode.UPDATE_AND_CREATE_TOPIC, _create())).code == 0
    ask(broker, request(RequestCode.UPDATE_AND_CREATE_TOPIC, _create(perm=4)))
    topic = broker.state.topics.find("new")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 5, 4)


@pytest.mark.parametrize("topic", ["bad.name", " ", "TBW102", "rmq_sys_x"])
def test_a_name_that_is_none_or_the_brokers_own_is_refused(broker: Broker, topic: str) -> None:
    answer = ask(broker, request(RequestCode.UPDATE_AND_CREATE_TOPIC, _create(topic=topic)))
    assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(("queue", "bounds"), [((TOPIC, 0), ("0", "3")), (("NoSuch", 0), ("0", "0"))])
def test_minimum_and_maximum_are_0_for_what_does_not_exist(
    broker: Broker, queue: tuple[str, int], bounds: tuple[str, str]
) -> None:
    fields = {"topic": queue[0], "queueId": queue[1]}
    answers = [ask(broker, request(code, fields)) for code in (31, 30)]
    assert tuple(answer.ext_fields["offset"] for answer in answers) == bounds


@pytest.mark.parametrize(
    ("after_s", "boundary", "queue_offset"),
    [
        (0, None, "0"),
        (5, "LOWER", "1"),
        (99, None, "3"),
        (5, "upper", "0"),
        (99, "UPPER", "2"),
        (5, "sideways", "1"),
    ],
)
def test_offsets_are_searched_by_store_time(
    broker: Broker, after_s: int, boundary: str | None, queue_offset: str
) -> None:
    fields = {
        "topic": TOPIC,
        "queueId": 0,
        "timestamp": _START_MS + after_s * 1000,
        "boundaryType": boundary,
    }
    answer = ask(broker, request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields))
    assert answer.ext_fields == {"offset": queue_offset}


@pytest.mark.parametrize(("queue_id", "timestamp"), [(0, str(_START_MS)), (1, "-1")])
def test_the_earliest_store_time_is_minus_one_for_an_empty_queue(
    broker: Broker, queue_id: int, timestamp: str
) -> None:
    answer = ask(
        broker, request(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": TOPIC, "queueId": queue_id})
    )
    assert answer.ext_fields == {"timestamp": timestamp}


def test_topic_statistics_name_every_queue(broker: Broker) -> None:
    answer = ask(broker, request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}))
    assert decode_topic_stats(answer.body) == {
        _QUEUE: QueueBounds(min_offset=0, max_offset=3, last_update_timestamp=_START_MS + 20_000),
        _QUEUE._replace(queue_id=1): QueueBounds(min_offset=0, max_offset=0, last_update_timestamp=0),
    }
    missing = ask(broker, request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "NoSuch"}))
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST
