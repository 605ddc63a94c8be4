"""The topic messages are replayed into: which queue takes a source queue's, where it ends, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.patient_lookup import PatientLookup
from pyspark_rocketmq.client.process_pool import process_pool
from pyspark_rocketmq.client.producer import Producer
from pyspark_rocketmq.client.settings import ConnectionSettings
from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.connection_options import PLAIN_SOURCE_GROUP
from pyspark_rocketmq.datasource.partition import QueuePartition
from pyspark_rocketmq.model import BrokerAddress, MessageQueue, QueueRange, TopicRoute
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.replay.ranges import target_queue
from pyspark_rocketmq.replay.sending import Sending
from pyspark_rocketmq.replay.target_tail import TargetTail
from pyspark_rocketmq.subscriptions import EVERYTHING


class TargetTopic:
    """Asked by the driver."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        """Ask for the topic's queues; they stay the same from here on. Looks for them as long as ``retryTimeoutMs``.

        Raises:
            RocketMQError: If it has none.
        """
        self._options = options
        pool = process_pool(ConnectionSettings.of(options))
        timeout_s = options.request_timeout_ms / 1000
        namespace = options.namespace or ""
        self._producer = Producer(
            options.name_servers,
            PLAIN_SOURCE_GROUP,
            pool=pool,
            send_timeout_s=timeout_s,
            namespace=namespace,
        )
        clock = SystemClock()
        self._brokers = BrokerClient(pool, clock, timeout_s, namespace=namespace)
        self._queues = PatientLookup(self._producer, clock, options.retry_timeout_ms / 1000).queues(topic)
        self._topic = topic

    def route(self) -> TopicRoute:
        """What the tasks need to know of the topic, so that they find its brokers when these have just restarted.

        Raises:
            RocketMQError: If it cannot be had.
        """
        return self._producer.route(self._topic)

    def sendings(self, run: str, sources: Sequence[QueueRange]) -> list[Sending]:
        """Where the ranges go, and where that ends now; nothing is sent yet.

        Raises:
            RocketMQError: If a broker does not answer.
        """
        targets = [target_queue(one.queue, self._queues) for one in sources]
        ends = {target: self._brokers.max_offset(self._address(target), target) for target in set(targets)}
        return [
            Sending(run=run, source=one, target=target, target_offset=ends[target])
            for one, target in zip(sources, targets, strict=True)
        ]

    def tail(self, target: MessageQueue) -> TargetTail:
        """How to look at a queue of the topic.

        Raises:
            RocketMQError: If no broker has it.
        """
        options = self._options
        return TargetTail(
            QueuePartition(
                planned=QueueRange(queue=target, start=0, end=0),
                address=self._address(target),
                subscription=EVERYTHING,
                consumer_group=PLAIN_SOURCE_GROUP,
                with_marker=False,
                fail_on_data_loss=False,
                keeps_undecodable=True,
                pull_batch_size=options.pull_batch_size,
                pulls_in_flight=options.pulls_in_flight,
                request_timeout_s=options.request_timeout_ms / 1000,
                retry_timeout_s=options.retry_timeout_ms / 1000,
                max_in_flight_bytes=options.max_in_flight_bytes,
                connection=ConnectionSettings.of(options),
                namespace=options.namespace or "",
            )
        )

    def _address(self, target: MessageQueue) -> BrokerAddress:
        return BrokerAddress(self._producer.master_of(target))
