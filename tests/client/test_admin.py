"""What administrators ask: requests as Java's tools send them, answers as brokers gave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.pool import ChannelPool
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import (
    BrokerError,
    ConsumerNotOnline,
    ExpressionInvalid,
    RemoteProtocolError,
)
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.wire.command import RemotingCommand, decode_frame
from pyspark_rocketmq.wire.fastjson import loads
from pyspark_rocketmq.wire.subscription import SQL92, SubscriptionData
from tests.helpers.golden import recorded_command
from tests.helpers.scripted_server import Peer, ScriptedServer
from tests.helpers.wait import PATIENCE_S

ORDERS_0 = MessageQueue("FrOrder", "broker-a", 0)
SQL = SubscriptionData(topic="FrSql", sub_string="a > 5", expression_type=SQL92, sub_version=1)
BUSINESS_KEY = "k1"

Call = Callable[[BrokerClient, str], Any]

CALLS: dict[str, tuple[int, Call]] = {
    "create topic": (13, lambda a, at: a.create_topic(at, "orders", 4)),
    "consumer connection": (51, lambda a, at: a.consumer_connection(at, "FrOrderG")),
    "check subscription": (89, lambda a, at: a.check_subscription(at, "127.0.0.1@i-sql", "FrSqlG", SQL)),
    "running info": (52, lambda a, at: a.running_info(at, "FrOrderG", "127.0.0.1@i-order")),
}


@pytest.fixture
def admin(pool: ChannelPool) -> BrokerClient:
    return BrokerClient(pool, SystemClock(), request_timeout_s=PATIENCE_S)


def replay(server: ScriptedServer, pair_id: int) -> None:
    """Answer every request as the real broker answered the recorded one."""
    recorded = decode_frame(recorded_command(pair_id, is_response=True).frame)

    def answer(peer: Peer, request: RemotingCommand) -> None:
        peer.answer(
            request,
            recorded.code,
            remark=recorded.remark,
            ext_fields=recorded.ext_fields,
            body=recorded.body,
        )

    server.script = answer


@pytest.mark.parametrize("name", list(CALLS))
def test_a_request_is_what_java_sends(server: ScriptedServer, admin: BrokerClient, name: str) -> None:
    """A1: code, flag, ext fields and body fields equal a recorded frame of Java's tools;
    the answer is taken.
    """
    pair_id, call = CALLS[name]
    java = decode_frame(recorded_command(pair_id).frame)
    replay(server, pair_id)
    call(admin, server.address)
    ours = server.next_request()

    assert (ours.code, ours.flag) == (java.code, java.flag)
    assert set(ours.ext_fields) == set(java.ext_fields)
    if java.body.startswith(b"{"):
        assert loads(ours.body).keys() == loads(java.body).keys()


def test_answers_become_values(server: ScriptedServer, admin: BrokerClient) -> None:
    """A1: as mqadmin shows them."""

    def ask(name: str) -> Any:
        pair_id, call = CALLS[name]
        replay(server, pair_id)
        return call(admin, server.address)

    assert ask("running info").properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"


@pytest.mark.parametrize(
    ("pair_id", "name", "error"),
    [
        (170, "consumer connection", ConsumerNotOnline),
        (94, "check subscription", ExpressionInvalid),
        (169, "running info", BrokerError),
    ],
)
def test_refusals_are_errors_of_their_class(
    server: ScriptedServer, admin: BrokerClient, pair_id: int, name: str, error: type[BrokerError]
) -> None:
    """A1: by the answers of a real broker."""
    replay(server, pair_id)

    with pytest.raises(error) as caught:
        CALLS[name][1](admin, server.address)
    assert type(caught.value) is error


@pytest.mark.parametrize("remark", [None, "there is unexpected error when get running info"])
def test_a_member_that_answers_with_only_a_remark_is_shown_with_it(
    admin: BrokerClient, server: ScriptedServer, remark: str | None
) -> None:
    """D12: as a Go client does; its broker hands the answer on."""
    server.script = lambda peer, request: peer.answer(request, 0, remark=remark)

    with pytest.raises(
        RemoteProtocolError, match=rf"Consumer 10\.0\.0\.1@7 .* answered only '{remark or ''}'"
    ):
        admin.running_info(server.address, "g", "10.0.0.1@7")
