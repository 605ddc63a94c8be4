"""The data source gives the planner a way to call a listener that was registered by name (row D12)."""

from __future__ import annotations

import pickle

from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.model import ConsumeOrderlyStatus
from pyspark_rocketmq.source.readers import RocketMQStreamReader
from pyspark_rocketmq.wire.requests.client_info import ConsumeResult
from tests.helpers.messages import message_at

OPTIONS = {"nameServers": "n:1", "topic": "orders", "consumerGroup": "g", "offsetStore": "delta:/unused"}


def on_order(messages: object, context: object) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS


def reader(**more: str) -> RocketMQStreamReader:
    source = DefaultSource(OPTIONS | more)
    return source.streamReader(source.schema())


def test_a_listener_with_a_name_is_opened_in_the_planner() -> None:
    open_listener = reader(listener=f"{__name__}:on_order")._open_listener

    assert open_listener is not None
    assert open_listener()(message_at(3)).consume_result is ConsumeResult.CR_SUCCESS


def test_a_query_without_a_named_listener_opens_none() -> None:
    assert reader()._open_listener is None


def test_executors_get_a_reader_without_the_listener() -> None:
    sent = pickle.loads(pickle.dumps(reader(listener=f"{__name__}:on_order")))

    assert sent._open_listener is None
