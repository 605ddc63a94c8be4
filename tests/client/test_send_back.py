"""Messages sent back to scripted brokers: which one is asked, and what follows when it fails."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.client.producer.send_back import SendBack, SendBackSettings
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ConnectFailed,
    DeadLetterRefused,
    SystemBusy,
    TransportError,
)
from pyspark_rocketmq.model import BrokerData, MessageExt, MessageQueue, TopicRoute
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.properties import decode_properties
from tests.helpers.messages import message_at
from tests.helpers.scripted_cluster import ScriptedCluster
from tests.helpers.scripted_server import Peer
from tests.helpers.wait import PATIENCE_S

RETRY = "%RETRY%billing"


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        cluster.routes["orders"] = cluster.route({"broker-a": 4, "broker-b": 4})
        cluster.routes[RETRY] = cluster.route({"broker-a": 1, "broker-b": 1})
        yield cluster


def settings_of(cluster: ScriptedCluster, namespace: str = "") -> SendBackSettings:
    return SendBackSettings(
        name_servers=(cluster.name_server.address,),
        consumer_group="billing",
        namespace=namespace,
        back_timeout_s=PATIENCE_S,
        send_timeout_s=PATIENCE_S,
    )


@pytest.fixture
def send_back(cluster: ScriptedCluster) -> SendBack:
    return SendBack(settings_of(cluster))


def failed(broker: str = "broker-a", times: int = 0, **properties: str) -> MessageExt:
    message = message_at(7, queue=MessageQueue("orders", broker, 3))
    return message._replace(
        reconsume_times=times, flag=5, properties={"KEYS": "key-7", "UNIQ_KEY": message.msg_id, **properties}
    )


def refuse(peer: Peer, request: RemotingCommand) -> None:
    peer.answer(request, ResponseCode.SYSTEM_ERROR, remark="look message by offset failed")


def properties_of(request: RemotingCommand) -> dict[str, str]:
    return decode_properties(request.ext_fields["i"].encode())


@pytest.mark.parametrize("name", ["broker-a", "broker-b"])
def test_a_message_goes_back_to_the_broker_that_stores_it(
    cluster: ScriptedCluster, send_back: SendBack, name: str
) -> None:
    """E3: CONSUMER_SEND_MSG_BACK with its commit log offset, the level asked for and the group's maximum."""
    send_back.send(failed(name), delay_level=4, max_reconsume_times=16)

    (request,) = cluster.brokers[name].sent_back
    assert request.code == RequestCode.CONSUMER_SEND_MSG_BACK
    assert (
        request.ext_fields.items()
        >= {
            "offset": "700",
            "group": "billing",
            "delayLevel": "4",
            "originMsgId": f"{7:032X}",
            "originTopic": "orders",
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        }.items()
    )
    assert not any(broker.sends for broker in cluster.brokers.values())


def test_a_retry_goes_back_to_a_broker_that_only_the_retry_topic_is_on(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """E3: its own topic may have no queue there."""
    whole = cluster.routes["orders"]
    cluster.routes["orders"] = TopicRoute(brokers=whole.brokers[:1], queues=whole.queues[:1])

    send_back.send(failed("broker-b", times=1), delay_level=0, max_reconsume_times=16)

    assert len(cluster.brokers["broker-b"].sent_back) == 1


def test_a_message_without_a_broker_name_goes_back_to_its_store_host(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """E3: as Java does (``RemotingHelper.parseSocketAddressAddr(msg.getStoreHost())``)."""
    message = failed()._replace(broker_name="", store_host=cluster.brokers["broker-b"].server.address)

    send_back.send(message, delay_level=0, max_reconsume_times=16)

    assert len(cluster.brokers["broker-b"].sent_back) == 1


def test_a_refused_message_is_sent_to_the_retry_topic_like_any_other(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """E3: with its history, and one attempt more in properties and header (golden fact 20)."""
    cluster.brokers["broker-a"].fault_of_sent_back = refuse
    message = failed(times=2, TRAN_MSG="true", DELAY="4", REAL_TOPIC=RETRY)

    send_back.send(message, delay_level=9, max_reconsume_times=16)

    (request,) = [one for broker in cluster.brokers.values() for one in broker.sends]
    assert (request.body, request.ext_fields["l"], request.ext_fields["h"]) == (b"body-7", "16", "5")
    assert (request.ext_fields["a"], request.ext_fields["b"]) == ("CLIENT_INNER_PRODUCER", RETRY)
    assert request.ext_fields["j"] == "3"
    assert properties_of(request) == {
        "KEYS": "key-7",
        "UNIQ_KEY": message.msg_id,
        "ORIGIN_MESSAGE_ID": message.msg_id,
        "RETRY_TOPIC": "orders",
        "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "16",
        "DELAY": "5",
        "REAL_TOPIC": RETRY,
        "WAIT": "true",
    }


def test_the_first_attempts_id_goes_with_every_copy(cluster: ScriptedCluster, send_back: SendBack) -> None:
    """E3, H6: ORIGIN_MESSAGE_ID links the copies."""
    cluster.brokers["broker-a"].fault_of_sent_back = refuse

    send_back.send(failed(ORIGIN_MESSAGE_ID="first"), delay_level=0, max_reconsume_times=16)

    (request,) = [one for broker in cluster.brokers.values() for one in broker.sends]
    assert properties_of(request)["ORIGIN_MESSAGE_ID"] == "first"


def test_while_the_storing_broker_is_away_another_one_takes_the_message(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """E3: and the next message asks for the route again."""
    away = cluster.brokers["broker-a"]
    away.fault = lambda peer, request: peer.close()

    send_back.send(failed(), delay_level=0, max_reconsume_times=16)
    away.fault = None
    send_back.send(failed(), delay_level=0, max_reconsume_times=16)

    assert len(cluster.brokers["broker-b"].sends) == 1
    assert len(away.sent_back) == 1
    assert cluster.route_requests.count("orders") == 2


class MovedClock:
    """Shows the system's time, and monotonic time moved forward by ``ahead_s``."""

    ahead_s = 0.0

    def now_s(self) -> float:
        return SystemClock().now_s()

    def monotonic_s(self) -> float:
        return SystemClock().monotonic_s() + self.ahead_s


def test_a_silent_broker_is_tried_again_only_after_30_s(cluster: ScriptedCluster) -> None:
    """E3: neither way goes to it, so each further message costs no time-out."""
    clock = MovedClock()
    settings = replace(settings_of(cluster), back_timeout_s=0.3)
    send_back = SendBack(settings, clock)
    silent, other = cluster.brokers["broker-a"], cluster.brokers["broker-b"]
    asked: list[int] = []
    silent.fault = lambda peer, request: asked.append(request.code)

    for offset in range(20):
        # By this time the producer by itself would try the broker again.
        clock.ahead_s = offset * 1.2
        send_back.send(failed()._replace(queue_offset=offset), delay_level=0, max_reconsume_times=16)
    assert (asked, len(other.sends)) == ([RequestCode.CONSUMER_SEND_MSG_BACK], 20)

    silent.fault = None
    clock.ahead_s = 31.0
    send_back.send(failed(), delay_level=0, max_reconsume_times=16)
    assert (len(silent.sent_back), len(other.sends)) == (1, 20)


@pytest.mark.parametrize(("level", "expected"), [(-1, ("3", "2")), (0, ("5", "16")), (18, ("18", "16"))])
def test_a_message_whose_silent_broker_is_not_asked_keeps_its_delay_level(
    cluster: ScriptedCluster, level: int, expected: tuple[str, str]
) -> None:
    """E3: for 30 s the ordinary way is the only one; with a limit that it exceeds it is a dead letter."""
    clock = MovedClock()
    send_back = SendBack(replace(settings_of(cluster), back_timeout_s=0.3), clock)
    cluster.brokers["broker-a"].fault = lambda peer, request: None
    send_back.send(failed(), delay_level=level, max_reconsume_times=16)
    cluster.brokers["broker-a"].fault = None

    message = failed()._replace(reconsume_times=2)
    send_back.send(message, delay_level=level, max_reconsume_times=16)

    sent = properties_of(cluster.brokers["broker-b"].sends[-1])
    assert (sent["RECONSUME_TIME"], sent["MAX_RECONSUME_TIMES"]) == ("3", expected[1])
    assert level == -1 or sent["DELAY"] == expected[0]


def test_an_error_names_both_ways(cluster: ScriptedCluster, send_back: SendBack) -> None:
    """E4: the cause is the error of the first way."""
    cluster.brokers["broker-a"].fault_of_sent_back = refuse
    cluster.routes[RETRY] = cluster.only({"broker-b": 1})
    cluster.brokers["broker-b"].fault = lambda peer, request: peer.close()

    with pytest.raises(TransportError) as caught:
        send_back.send(failed(), delay_level=0, max_reconsume_times=16)
    assert isinstance(caught.value.__cause__, BrokerError)


def test_a_broker_without_a_master_is_not_asked(cluster: ScriptedCluster, send_back: SendBack) -> None:
    """E3: a slave stores nothing."""
    address = cluster.routes["orders"].address_of("broker-a")
    assert address is not None
    slave = BrokerData(broker_name="broker-a", cluster="C", addresses={1: address})
    for topic, route in cluster.routes.items():
        cluster.routes[topic] = TopicRoute(brokers=(slave, route.brokers[1]), queues=route.queues)

    send_back.send(failed(), delay_level=0, max_reconsume_times=16)

    assert cluster.brokers["broker-a"].server.requests.empty()
    assert len(cluster.brokers["broker-b"].sends) == 1


def test_a_message_that_neither_way_stores_is_an_error(cluster: ScriptedCluster, send_back: SendBack) -> None:
    """E4: so that the offset does not pass it."""
    for broker in cluster.brokers.values():
        broker.fault = refuse

    with pytest.raises(BrokerError, match="look message by offset failed"):
        send_back.send(failed(), delay_level=0, max_reconsume_times=16)


def test_without_a_name_server_it_is_an_error_in_time(cluster: ScriptedCluster) -> None:
    """E4."""
    settings = settings_of(cluster)
    cluster.close()

    with pytest.raises(TransportError) as caught:
        SendBack(settings).send(failed(), delay_level=0, max_reconsume_times=16)
    assert isinstance(caught.value, ConnectFailed)


def test_an_orderly_consumer_s_message_goes_to_the_retry_topic_only(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """D6: never by CONSUMER_SEND_MSG_BACK, and it is an error when no broker takes it."""
    send_back.send_as_retry(failed(times=3), max_reconsume_times=3)

    (request,) = [one for broker in cluster.brokers.values() for one in broker.sends]
    assert (request.ext_fields["b"], request.ext_fields["j"], request.ext_fields["l"]) == (RETRY, "4", "3")
    assert not any(broker.sent_back for broker in cluster.brokers.values())

    for broker in cluster.brokers.values():
        broker.fault = refuse
    with pytest.raises(BrokerError):
        send_back.send_as_retry(failed(times=3), max_reconsume_times=3)


def test_a_dead_letter_is_sent_as_java_sends_it_where_that_works(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """D6"""
    send_back.send_as_dead_letter(failed(times=3), max_reconsume_times=3)

    assert len([one for broker in cluster.brokers.values() for one in broker.sends]) == 1
    assert not any(broker.sent_back for broker in cluster.brokers.values())


def test_a_dead_letter_refused_as_a_send_is_copied_by_its_broker(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """D6: where the group may not send, or its retry topic's name is too long for producers."""
    copied = []

    def refuse_sends(peer: Peer, request: RemotingCommand) -> None:
        if request.code != RequestCode.CONSUMER_SEND_MSG_BACK:
            peer.answer(request, ResponseCode.NO_PERMISSION, remark="No permission to send")
            return
        copied.append((request.ext_fields["offset"], request.ext_fields["delayLevel"]))
        peer.answer(request)

    for broker in cluster.brokers.values():
        broker.fault = refuse_sends

    send_back.send_as_dead_letter(failed("broker-b", times=3), max_reconsume_times=3)

    assert copied == [("700", "-1")]


def test_a_dead_letter_whose_properties_grow_too_large_is_copied_by_its_broker(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """D6: a send adds the message's history to them."""
    send_back.send_as_dead_letter(failed(times=3, wide="x" * 32_600), max_reconsume_times=3)

    assert len(cluster.brokers["broker-a"].sent_back) == 1
    assert not any(broker.sends for broker in cluster.brokers.values())


def test_a_dead_letter_that_nobody_takes_is_an_error_with_both_reasons(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """D6: it waits at its offset, and the error says at which and why."""
    for broker in cluster.brokers.values():
        broker.fault = broker.fault_of_sent_back = refuse

    with pytest.raises(DeadLetterRefused, match=r"queue=3 queueOffset=7: .* group billing") as caught:
        send_back.send_as_dead_letter(failed(times=3), max_reconsume_times=3)

    assert not caught.value.retryable
    assert "look message by offset failed" in caught.value.sent
    assert "look message by offset failed" in caught.value.copied


def test_a_dead_letter_that_may_be_taken_later_is_not_copied_meanwhile(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """D6: a broker that is busy or away."""

    def busy(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(request, ResponseCode.SYSTEM_BUSY, remark="[OVERLOAD]system busy")

    for broker in cluster.brokers.values():
        broker.fault = busy

    with pytest.raises(SystemBusy):
        send_back.send_as_dead_letter(failed(times=3), max_reconsume_times=3)

    assert not any(broker.sent_back for broker in cluster.brokers.values())


def test_names_have_their_namespace_at_the_broker(cluster: ScriptedCluster) -> None:
    """A6, E3: group, topic and what the copy remembers of them."""
    cluster.routes["shop%orders"] = cluster.routes["orders"]
    cluster.routes["%RETRY%shop%billing"] = cluster.routes[RETRY]
    send_back = SendBack(settings_of(cluster, "shop"))
    broker = cluster.brokers["broker-a"]

    send_back.send(failed(), delay_level=0, max_reconsume_times=16)
    broker.fault_of_sent_back = refuse
    send_back.send(failed(), delay_level=0, max_reconsume_times=16)

    fields = broker.sent_back[0].ext_fields
    assert (fields["group"], fields["originTopic"]) == ("shop%billing", "shop%orders")
    (request,) = [one for each in cluster.brokers.values() for one in each.sends]
    assert request.ext_fields["b"] == "%RETRY%shop%billing"
    assert properties_of(request)["RETRY_TOPIC"] == "shop%orders"


def test_settings_travel_to_a_worker_without_showing_their_secrets() -> None:
    """A5: pickled whole, printed without."""
    settings = SendBackSettings(
        name_servers=("ns:9876",),
        consumer_group="billing",
        connection=ConnectionSettings(access_key="me", secret_key="hidden"),
    )

    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "hidden" not in repr(settings)


def test_a_message_goes_back_to_its_broker_while_the_name_server_does_not_know_its_topic(
    cluster: ScriptedCluster, send_back: SendBack
) -> None:
    """E3, G7: as after the name server's restart."""
    cluster.brokers["broker-a"].fault_of_sent_back = lambda peer, request: peer.close()
    send_back.send(failed(), delay_level=0, max_reconsume_times=16)
    cluster.brokers["broker-a"].fault_of_sent_back = None
    cluster.routes.clear()
    send_back.send(failed(), delay_level=0, max_reconsume_times=16)

    assert len(cluster.brokers["broker-a"].sent_back) == 2
