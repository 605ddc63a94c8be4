"""Values that name topics and groups as users do, made into what brokers are told: with their namespace. Pure."""

from __future__ import annotations

from dataclasses import replace

from pyspark_rocketmq.client.pull import PullRequest
from pyspark_rocketmq.client.sending import Batch, SendTerms
from pyspark_rocketmq.wire.bodies import ConsumerData, HeartbeatData
from pyspark_rocketmq.wire.namespace import queue_with_namespace, with_namespace


def named_pull(namespace: str, request: PullRequest) -> PullRequest:
    """The pull of the same queue for the same group, under their full names."""
    if not namespace:
        return request
    return replace(
        request,
        consumer_group=with_namespace(namespace, request.consumer_group),
        queue=queue_with_namespace(namespace, request.queue),
    )


def named_terms(namespace: str, terms: SendTerms) -> SendTerms:
    """The terms under the producer group's full name; the template of new topics has no namespace."""
    if not namespace:
        return terms
    return replace(terms, producer_group=with_namespace(namespace, terms.producer_group))


def named_batch(namespace: str, batch: Batch) -> Batch:
    """The batch for the same queue under its full name."""
    if not namespace:
        return batch
    messages = [replace(one, topic=with_namespace(namespace, one.topic)) for one in batch.messages]
    return replace(batch, queue=queue_with_namespace(namespace, batch.queue), messages=messages)


def named_heartbeat(namespace: str, heartbeat: HeartbeatData) -> HeartbeatData:
    """The heartbeat with the full names of all groups and of the topics they subscribe to."""
    if not namespace:
        return heartbeat
    return replace(
        heartbeat,
        consumers=tuple(_named_consumer(namespace, consumer) for consumer in heartbeat.consumers),
        producers=tuple(with_namespace(namespace, group) for group in heartbeat.producers),
    )


def _named_consumer(namespace: str, consumer: ConsumerData) -> ConsumerData:
    return replace(
        consumer,
        group_name=with_namespace(namespace, consumer.group_name),
        subscriptions=tuple(
            replace(one, topic=with_namespace(namespace, one.topic)) for one in consumer.subscriptions
        ),
    )
