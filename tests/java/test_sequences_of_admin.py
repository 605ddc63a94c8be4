"""mqadmin's commands make the same requests of the simulator, in the same order,
as recorded on a real broker.

Two requests of the recording belong to no command, so their frames are replayed separately: the offsets that
a client has (223: pairs 63 and 65), and a message for a client that is not there (309: pair 70).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import pairwise
from typing import Any

import pytest

from tests.both.support import ANSWER_S
from tests.helpers.wait import wait_until
from tests.java.push import PushConsumer, await_producer
from tests.java.request_log import ONEWAY
from tests.java.stage import PULLS, Row, Stage, observed, queue_of, recorded

pytestmark = [pytest.mark.sim, pytest.mark.java, pytest.mark.timeout(900)]

_GROUP = "FrOrderG"
_OF_MEMBERS = PULLS | {"HEART_BEAT", "GET_CONSUMER_LIST_BY_GROUP", "LOCK_BATCH_MQ", "QUERY_CONSUMER_OFFSET"}
_OF_MEMBERS |= {"NOTIFY_CONSUMER_IDS_CHANGED"}
_GOODBYE = "UNREGISTER_CLIENT"
"""Request that a client may send while the next command runs."""
_ROUTES = "GET_ROUTEINFO_BY_TOPIC"
"""Request that other clients send from time to time."""


def _of_commands(rows: Iterable[Row], without: Set[str] = frozenset()) -> list[Row]:
    """Return the commands' own requests; a request that follows itself counts once."""
    others = _OF_MEMBERS | {_GOODBYE} | without
    own = [row for row in rows if row[1] not in others and row[3] != ONEWAY]
    return [row for before, row in pairwise([None, *own]) if row is not None and row != before]


class Admin:
    """mqadmin beside an orderly member that has consumed a message."""

    def __init__(self, stage: Stage, sent: dict[str, Any]) -> None:
        self.stage = stage
        self.address = stage.cluster.broker_addresses["broker-a"]
        self.message_id = sent["msgId"]
        connections = stage.java.mqadmin("consumerConnection", "-g", _GROUP)
        (self.client_id,) = {word for word in connections.split() if word.endswith("@admin-order")}

    def run(self, wanted: Iterable[Row], *commands: str, without: frozenset[str] = frozenset()) -> list[Row]:
        """Return the requests of the commands, one after another, routes left out,
        once all that are ``wanted`` were made.
        """
        log = self.stage.log
        log.taken()
        self.stage.java.submit("mqadmin.all", commands=[command.split() for command in commands])

        def missing() -> set[Row]:
            return set(wanted) - set(observed(log.so_far()))

        wait_until(lambda: not missing(), 2 * ANSWER_S, reason=f"All requests but {missing()}")
        return _of_commands(observed(log.taken()), without | {_ROUTES})


@pytest.fixture(scope="module")
def admin(stage: Stage) -> Iterator[Admin]:
    """Yield mqadmin and a group with an offset for its retry topic, beside two groups without members."""
    message = {"topic": "FrOrder", "body": "x", "keys": "k", "tags": "T"}
    how = {"group": "FrAdminP", "how": "queue", "queue": queue_of("FrOrder")}
    (sent,) = stage.java.call("producer.send", **how, messages=[message])
    stage.view.create_topic("FrPerm", queues=2)
    for group in ("FrLiteG", "FrConcG"):
        stage.view.create_topic(f"%RETRY%{group}", queues=1)
    member = PushConsumer(stage.java, "admin-order", _GROUP, "FrOrder", isOrderly=True)
    member.delivered(1)
    member.persist()
    await_producer(stage.cluster.broker_addresses["broker-a"], "FrAdminP")
    offsets = stage.cluster.broker("broker-a").state.offsets
    stage.cluster.call(lambda: offsets.commit(_GROUP, f"%RETRY%{_GROUP}", 0, 0))
    stage.cluster.call(lambda: offsets.commit("FrLiteG", "FrA", 0, 0))
    yield Admin(stage, sent)
    member.stop()


def _of_other_groups(rows: list[Row]) -> set[str | None]:
    """Topics of groups that other tests brought into the cluster."""
    return {row[2] for row in rows if row[1] == "GET_TOPIC_CONFIG"}


def test_questions_about_a_topic_are_asked_as_recorded(admin: Admin) -> None:
    """A1: by key, route, status, lists, brokers, producers, queue, offset, configuration."""
    wanted = recorded("admin_query")
    commands = (
        "queryMsgByKey -t FrOrder -k k",
        "topicRoute -t FrOrder",
        "topicStatus -t FrOrder",
        "topicList",
        "topicClusterList -t FrOrder",
        "clusterList",
        f"brokerStatus -b {admin.address}",
        "producerConnection -g FrAdminP -t FrA",
        f"queryCq -t FrOrder -q 0 -i 0 -b {admin.address}",
        "queryMsgByOffset -t FrOrder -b broker-a -i 0 -o 0",
        f"getBrokerConfig -b {admin.address}",
    )

    assert admin.run(_of_commands(wanted), *commands) == _of_commands(wanted, {_ROUTES})


def test_changes_are_made_as_recorded(admin: Admin) -> None:
    """F4: a topic with an order, a group, a permission, another group's offsets; and away with them.

    A topic is deleted on the simulator only: the harness' real brokers have no timer wheel (golden fact 26).
    """
    wanted = recorded("admin_write")
    admin.run(wanted[:1], f"updateTopic -b {admin.address} -t FrNew")
    assert admin.stage.view.routed_brokers("FrNew") == {"broker-a"}
    commands = (
        f"updateTopic -b {admin.address} -t FrNew -r 4 -w 4 -o true",
        f"updateSubGroup -b {admin.address} -g FrNewG",
        f"updateTopicPerm -b {admin.address} -t FrPerm -p 4",
        f"cloneGroupOffset -s {_GROUP} -d FrNewG -t FrOrder",
        f"deleteSubGroup -b {admin.address} -g FrNewG",
        "deleteTopic -c DefaultCluster -t FrNew",
    )

    assert admin.run(_of_commands(wanted), *commands) == _of_commands(wanted, {_ROUTES})
    assert not admin.stage.view.routed_brokers("FrNew")


def test_questions_about_a_group_are_asked_as_recorded(admin: Admin) -> None:
    """F5, A4: progress of one group and of all, its members, a member's own report,
    its configuration.
    """
    no_commands = {"INVOKE_BROKER_TO_GET_CONSUMER_STATUS", "GET_CONSUMER_STATUS_FROM_CLIENT"}
    without = frozenset({_ROUTES, "SEND_MESSAGE_V2", *no_commands})
    wanted = _of_commands(recorded("admin_on_orderly"), without)
    of_group = ("consumerProgress", "consumerProgress", "consumerStatus")
    asked = [f"{command} -g {_GROUP}" for command in of_group]

    rows = admin.run(wanted, *asked, "consumerProgress", f"getConsumerConfig -g {_GROUP}", without=without)

    # Then all groups, in Java's arbitrary order.
    about_all = wanted.index(("client->namesrv", "GET_ALL_TOPIC_LIST_FROM_NAMESERVER", None, 0))
    assert rows[: about_all + 1] == wanted[: about_all + 1]
    assert {row for row in rows if row not in wanted} <= {
        ("client->broker", "GET_TOPIC_CONFIG", topic, 0) for topic in _of_other_groups(rows)
    }


def test_a_message_is_consumed_directly_as_recorded(admin: Admin) -> None:
    """A4: both questions to a client (307, 309) go through the broker."""
    refused = ("client->broker", "CONSUME_MESSAGE_DIRECTLY", "FrOrder", 1)
    of_recording = [row for row in _of_commands(recorded("admin_consume_directly")) if row != refused]
    command = f"queryMsgByUniqueKey -g {_GROUP} -d {admin.client_id} -i {admin.message_id} -t FrOrder"

    rows = admin.run(of_recording, command)

    assert set(rows) == set(_of_commands(of_recording, {_ROUTES}))
    assert [row[1] for row in rows] == [
        "GET_CONSUMER_RUNNING_INFO",  # asked by the command, then by the broker
        "GET_CONSUMER_RUNNING_INFO",
        "QUERY_MESSAGE",
        "CONSUME_MESSAGE_DIRECTLY",
        "CONSUME_MESSAGE_DIRECTLY",
    ]
