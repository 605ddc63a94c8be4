"""A running consumer as an operator sees and moves it with mqadmin:
one query and one JVM per kind of cluster.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_rocketmq.consumer.push_consumer import PushConsumer
from pyspark_rocketmq.listeners.context import ConsumeOrderlyContext
from pyspark_rocketmq.model import ConsumeFromWhere, ConsumeOrderlyStatus, MessageExt, MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.helpers.cluster import Backend, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.orders import produce_orders
from tests.helpers.retries import rows_but_retries
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_TOPIC, _GROUP, _INSTANCE = "VisibleTopic", "VisibleGroup", "visible"
_CLIENT_ID = f"{os.uname().nodename}@{_INSTANCE}"
_MESSAGES = 50
_TIMEOUT_S = 240
_LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} .*\n", re.MULTILINE)


def listener(log: DeliveryLog) -> Callable[..., ConsumeOrderlyStatus]:
    def note(messages: Sequence[MessageExt], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        log.note(messages)
        return ConsumeOrderlyStatus.SUCCESS

    return note


class Watched:
    """The query, and the JVM with mqadmin."""

    def __init__(self, cluster: ClusterUnderTest, java: JavaClients, folder: Path) -> None:
        self.cluster = cluster
        self.store = DeltaOffsetStore(folder / "offsets")
        self.log = DeliveryLog(folder / "deliveries")
        self._java = java
        self._times = 0

    def mqadmin(self, *words: str) -> str:
        """Run a command of mqadmin, and return its output."""
        return _LOG_LINE.sub("", self._java.mqadmin(*words))

    def rows(self, *words: str) -> list[list[str]]:
        """Return the words of each line that a command printed."""
        return [line.split() for line in self.mqadmin(*words).splitlines()]

    def progress(self) -> dict[MessageQueue, tuple[int, int, int]]:
        """Broker offset, consumer offset and difference of each queue, as mqadmin shows them."""
        found = {}
        for words in self.rows("consumerProgress", "-g", _GROUP):
            if words[:1] == [_TOPIC]:
                found[MessageQueue(_TOPIC, words[1], int(words[2]))] = (
                    int(words[3]),
                    int(words[4]),
                    int(words[5]),
                )
        return found

    def consumed_once_more(self) -> None:
        """Wait until every message was delivered again, by queue from the first to the last,
        and committed.
        """
        self._times += 1
        wait_until(
            lambda: self.log.times_delivered().total() >= self._times * _MESSAGES,
            _TIMEOUT_S,
            reason=f"Every message {self._times} times",
        )
        wait_until(
            lambda: (
                sum(row.next_offset for row in rows_but_retries(self.store.read(_GROUP)).values())
                == _MESSAGES
            ),
            _TIMEOUT_S,
            reason="Their commit",
        )
        assert Counter(self.log.times_delivered().values()) == {self._times: _MESSAGES}
        for deliveries in self.log.by_queue().values():
            offsets = [offset for delivery in deliveries for offset in delivery.queue_offsets]
            assert offsets == [*range(len(offsets) // self._times)] * self._times


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("sim", marks=[pytest.mark.sim, pytest.mark.java, pytest.mark.long]),
        pytest.param("real", marks=pytest.mark.real),
    ],
)
def watched(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """Yield a consumer that has consumed everything there is, and continues."""
    backend: Backend = request.getfixturevalue(f"{request.param}_cluster")
    cluster = ClusterUnderTest(backend, request.param)
    cluster.create_topic(_TOPIC, queues=2)
    produce_orders(cluster.name_servers, _TOPIC, _MESSAGES // 5)
    folder = tmp_path_factory.mktemp(f"visible-{request.param}")
    with JavaClients(cluster.name_servers, folder) as java:
        watched = Watched(cluster, java, folder)
        consumer = PushConsumer(
            consumer_group=_GROUP,
            name_servers=cluster.name_servers,
            offset_store=watched.store,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            instance_name=_INSTANCE,
        )
        consumer.subscribe(_TOPIC)
        consumer.register_message_listener(listener(watched.log), output_schema="unused string")
        query = consumer.start(
            spark, checkpoint=str(folder / "checkpoint"), trigger={"processingTime": "200 milliseconds"}
        )
        try:
            watched.consumed_once_more()
            yield watched
            assert query.isActive
        finally:
            query.stop()


@pytest.fixture
def resets_are_pushed(watched: Watched) -> Iterator[None]:
    """Have brokers notify members of a reset, as all did before 5.1."""

    def configure(value: str) -> None:
        for address in watched.cluster.broker_addresses.values():
            watched.mqadmin(
                "updateBrokerConfig", "-b", address, "-k", "useServerSideResetOffset", "-v", value
            )

    configure("false")
    yield
    configure("true")


def test_the_member_and_its_subscriptions(watched: Watched) -> None:
    """A3: consumerConnection."""
    rows = watched.rows("consumerConnection", "-g", _GROUP)

    [member] = [words for words in rows if words[:1] == [_CLIENT_ID]]
    assert member[2:] == ["PYTHON", "V4_9_8"]
    assert [_TOPIC, "*"] in rows
    assert [f"%RETRY%{_GROUP}", "*"] in rows


def test_its_progress_is_that_of_the_offset_store(watched: Watched) -> None:
    """F1: consumerProgress; nothing is behind when everything is consumed."""
    expected = {
        queue: (row.next_offset, row.next_offset, 0)
        for queue, row in rows_but_retries(watched.store.read(_GROUP)).items()
    }

    wait_until(lambda: watched.progress() == expected, _TIMEOUT_S, reason="The mirrored offsets")

    assert len(expected) == 4


def test_consumer_status_has_its_queues_and_locks(watched: Watched) -> None:
    """D11, C1: consumerStatus asks the member itself."""
    shown = watched.mqadmin("consumerStatus", "-g", _GROUP, "-i", _CLIENT_ID)

    assert re.search(r"^PROP_CONSUMEORDERLY\s*: true$", shown, re.MULTILINE)
    assert re.search(rf"^offsetStore\s*: {re.escape(watched.store.spec)}$", shown, re.MULTILINE)
    details = re.findall(
        rf"^{_TOPIC} +(\S+) +(\d+) +ProcessQueueInfo \[commitOffset=(\d+),.* locked=(\w+),",
        shown,
        re.MULTILINE,
    )
    held = {MessageQueue(_TOPIC, name, int(id_)): (int(offset), lock) for name, id_, offset, lock in details}
    assert held == {
        queue: (row.next_offset, "true")
        for queue, row in rows_but_retries(watched.store.read(_GROUP)).items()
    }, shown


def test_consumer_status_has_rates_by_topic(watched: Watched) -> None:
    """D11: consumerStatus shows RT and TPS by topic; here a minute after 50 messages, perhaps."""
    shown = watched.mqadmin("consumerStatus", "-g", _GROUP, "-i", _CLIENT_ID)

    figures = {words[0]: [float(word) for word in words[1:]] for words in _figures(shown)}
    assert figures.keys() == {_TOPIC, f"%RETRY%{_GROUP}"}
    pull_rt, pull_tps, consume_rt, ok_tps, failed_tps, failed_in_hour = figures[_TOPIC]
    assert consume_rt > 0.0
    assert 0.0 <= ok_tps <= 2 * _MESSAGES / 10
    assert (pull_rt > 0.0) == (pull_tps > 0.0)
    assert (failed_tps, failed_in_hour) == (0.0, 0.0)


def _figures(shown: str) -> list[list[str]]:
    """Return the rows of the section about RT and TPS."""
    _, _, section = shown.partition("#Consumer RT&TPS#")
    rows = [line.split() for line in section.splitlines() if line.strip() and not line.startswith("#")]
    return [words for words in rows if len(words) == 7]


def test_a_reset_that_the_broker_keeps_is_followed_without_new_messages(watched: Watched) -> None:
    """F5: resetOffsetByTime, as of 5.1."""
    watched.mqadmin("resetOffsetByTime", "-g", _GROUP, "-t", _TOPIC, "-s", "0")

    watched.consumed_once_more()


@pytest.mark.usefixtures("resets_are_pushed")
def test_a_reset_notified_by_the_broker_is_followed_at_once(watched: Watched) -> None:
    """F5: code 220."""
    wait_until(
        lambda: len(watched.progress()) == 4, _TIMEOUT_S, reason="Offsets of all queues at the brokers"
    )

    watched.mqadmin("resetOffsetByTime", "-g", _GROUP, "-t", _TOPIC, "-s", "0")

    watched.consumed_once_more()
