"""Namespaces against Java's own functions."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_rocketmq.model import MessageQueue, retry_topic
from pyspark_rocketmq.wire.namespace import (
    queue_with_namespace,
    queue_without_namespace,
    with_namespace,
    without_namespace,
)
from tests.helpers.golden import golden

VECTORS = [vector for vector in golden("numbers.json")["NamespaceUtil"] if vector["resource"] is not None]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['namespace']}-{vector['resource']}")
def test_names_are_wrapped_and_unwrapped_as_java_does(vector: dict[str, Any]) -> None:
    """A6: NamespaceUtil.wrapNamespace, withoutNamespace with a namespace, wrapNamespaceAndRetry."""
    namespace, resource = vector["namespace"] or "", vector["resource"]

    assert with_namespace(namespace, resource) == vector["wrapNamespace"]
    assert without_namespace(namespace, resource) == vector["withoutNamespace2"]
    if vector["wrapNamespaceAndRetry"] is not None:
        assert retry_topic(with_namespace(namespace, resource)) == vector["wrapNamespaceAndRetry"]


@pytest.mark.parametrize(
    "topic",
    [
        *golden("numbers.json")["system_topics"],
        # New in 5.5.0.
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    ],
)
def test_system_topics_belong_to_no_namespace(topic: str) -> None:
    """A6: brokers use them under these very names."""
    assert with_namespace("shop", topic) == topic


def test_a_queue_carries_its_topic_s_namespace_to_the_server_and_loses_it_on_the_way_back() -> None:
    """A6: broker and queue stay."""
    queue = MessageQueue("orders", "broker-a", 3)
    wrapped = queue_with_namespace("shop", queue)

    assert wrapped == MessageQueue("shop%orders", "broker-a", 3)
    assert queue_without_namespace("shop", wrapped) == queue
    assert queue_with_namespace("", queue) is queue_without_namespace("", queue) is queue
