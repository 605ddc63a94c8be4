"""The recorded requests of RocketMQ 5.3.3 before pair 130,
each put to a server that was brought to the same state.

Of these the recording kept one per kind, so they cannot be replayed in a row. What the broker itself sent to
clients (39, 40, 220, 221, 307, 309) is compared as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from broker_sim.bodies import SubscriptionGroupConfig
from broker_sim.broker import Broker
from broker_sim.layout import Host
from broker_sim.nameserver import NameServer
from broker_sim.replies import Outgoing, Peer
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import Message, MessageModel, MessageQueue
from pyspark_rocketmq.wire.codes import RequestCode, ResponseCode
from pyspark_rocketmq.wire.command import RemotingCommand
from pyspark_rocketmq.wire.fastjson import dumps_java, loads
from pyspark_rocketmq.wire.messages import decode_messages
from pyspark_rocketmq.wire.properties import encode_properties
from pyspark_rocketmq.wire.requests.bodies import ConsumerData, HeartbeatData, decode_offset_table
from pyspark_rocketmq.wire.subscription import SQL92, TAG, build_subscription
from tests.broker_sim.exchange import add_topic, answer_in, ask, make_broker, request, send
from tests.broker_sim.recorded import PAIRS, assert_same_answer, recorded
from tests.broker_sim.stored_messages import stored_messages
from tests.helpers.fake_clock import FakeClock

_ADMIN = Peer(9, Host("127.0.0.1", 55180))
_PAIR = {pair["id"]: pair for pair in PAIRS}
_HELD_FOR_S = 15
_ENDS_TRANSACTION, _ASKS_FOR_TRANSACTION = 14, 15
_LISTS_TOPICS, _LISTS_GROUPS = 54, 67
_LATEST = 1_795_207_999_999


@dataclass
class _World:
    """A name server and its broker, on a clock that stands at the beginning of the recording."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(1_795_207_100.0))
    broker: Broker = field(init=False)
    name_server: NameServer = field(default_factory=lambda: NameServer(mirror_header_form=False))

    def __post_init__(self) -> None:
        self.broker = make_broker(self.clock, settings=BrokerSettings(enable_property_filter=True))
        self.broker.listening_at(Host("127.0.0.1", 20911))
        self.name_server.register("broker-a", self.broker.state.host, self.broker.state.topics)

    def topic(self, name: str) -> _World:
        add_topic(self.broker, name, 2)
        return self

    def fill(self, topic: str, queue_id: int, count: int, **properties: str) -> _World:
        if self.broker.state.topics.find(topic) is None:
            self.topic(topic)
        message = Message(topic=topic, body=b"x", properties={"TAGS": "TagA", **properties})
        self.broker.put(MessageQueue(topic, "broker-a", queue_id), [message] * count)
        return self

    def pad_to(self, commit_log_offset: int) -> _World:
        """Make the next message lie at ``commit_log_offset``."""
        queue = MessageQueue("padding", "broker-a", 0)
        store = self.broker.state.store
        start = store.end_offset
        self.broker.put(queue, [Message(topic="padding", body=b"x")])
        length_of_one_byte = store.end_offset - start
        missing = commit_log_offset - store.end_offset - length_of_one_byte
        self.broker.put(queue, [Message(topic="padding", body=bytes(missing + 1))])
        assert store.end_offset == commit_log_offset
        return self

    def member(
        self,
        group: str,
        *topics: str,
        client_id: str = "client",
        expression: str = "*",
        model: MessageModel = MessageModel.CLUSTERING,
        fingerprint: int = 0,
    ) -> _World:
        """Let a client join; it brings its retry topic's subscription along, as Java does."""
        kind = SQL92 if " " in expression else TAG
        wanted = [
            build_subscription(t, expression, sub_version=_LATEST, expression_type=kind) for t in topics
        ]
        retry = build_subscription(f"%RETRY%{group}", "*", sub_version=_LATEST)
        data = ConsumerData(group_name=group, message_model=model, subscriptions=(*wanted, retry))
        heartbeat = HeartbeatData(
            client_id=client_id, consumers=(data,), producers=("FrProducer",), fingerprint=fingerprint
        )
        command = request(RequestCode.HEART_BEAT, body=dumps_java(heartbeat), version=479, language=0)
        self.broker.handle(Peer(1, Host("127.0.0.1", 51326)), command)
        return self

    def commit(self, group: str, topic: str, *offsets: int) -> _World:
        for queue_id, queue_offset in enumerate(offsets):
            self.broker.state.offsets.commit(group, topic, queue_id, queue_offset)
        return self

    def reset(self, group: str, topic: str) -> _World:
        for queue_id in range(2):
            self.broker.state.offsets.reset(group, topic, queue_id, 0)
        return self

    def group(self, name: str) -> _World:
        self.broker.state.groups.put(SubscriptionGroupConfig(group_name=name))
        return self

    def change(self, **settings: Any) -> _World:
        self.broker.state.settings = replace(self.broker.state.settings, **settings)
        return self

    def lock(self, group: str) -> _World:
        self.broker.state.locks.lock_batch(group, "client", [MessageQueue("FrOrder", "broker-a", 0)])
        return self

    def begin_transactions(self, count: int) -> _World:
        """Store half messages of the recorded producer, who stays connected."""
        self.topic("FrTx")
        here = HeartbeatData(client_id="tx", producers=("FrTxG",))
        ask(self.broker, request(RequestCode.HEART_BEAT, body=dumps_java(here)))
        (asked_for,) = decode_messages(recorded(_PAIR[_ASKS_FOR_TRANSACTION]["request"]).body, "broker-a")
        names = ("UNIQ_KEY", "PGROUP", "TAGS", "TRAN_MSG", "KEYS", "WAIT")
        properties = encode_properties({name: asked_for.properties[name] for name in names}).decode()
        half = send(asked_for.body, a="FrTxG", b="FrTx", e=1, f=4, g=asked_for.born_timestamp, i=properties)
        for _ in range(count):
            assert ask(self.broker, half).code == ResponseCode.SUCCESS
        return self

    def play(self, pair: Mapping[str, Any]) -> list[Outgoing]:
        endpoint = self.name_server if pair["server"] == "namesrv" else self.broker
        return endpoint.handle(_ADMIN, recorded(pair["request"]))


_Scene = Callable[[_World], object]


def _nothing(_: _World) -> None:
    """The broker need not have seen anything."""


def _a(count: int, **properties: str) -> _Scene:
    return lambda world: world.fill("FrA", 0, count, **properties)


def _order(*counts: int) -> _Scene:
    def prepare(world: _World) -> None:
        for queue_id, count in enumerate(counts):
            world.fill("FrOrder", queue_id, count)
        world.member("FrOrderG", "FrOrder", client_id="127.0.0.1@i-order")

    return prepare


def _order_committed(world: _World) -> None:
    _order(2, 2)(world)
    world.commit("FrOrderG", "FrOrder", 2, 2).commit("FrOrderG", "%RETRY%FrOrderG", 0)


def _sql(world: _World) -> None:
    world.fill("FrSql", 0, 1, a="10").fill("FrSql", 1, 1, a="1")
    world.member("FrSqlG", "FrSql", expression="a > 5")


def _filtered(group: str) -> _Scene:
    return lambda world: (
        world.fill("FrA", 0, 16)
        .fill("FrA", 1, 15)
        .fill("FrA", 1, 1, TAGS="TagB")
        .member(group, "FrA", client_id="127.0.0.1@i-ns", expression="TagB")
    )


def _reset(world: _World) -> None:
    world.fill("FrReset", 0, 3).fill("FrReset", 1, 3).member("FrResetG", "FrReset").reset(
        "FrResetG", "FrReset"
    )


def _pushed_reset(world: _World) -> None:
    world.fill("FrReset", 0, 3).fill("FrReset", 1, 3).member("FrResetG", "FrReset")
    world.commit("FrResetG", "FrReset", 3, 3).change(use_server_side_reset_offset=False)


def _consume_directly(world: _World) -> None:
    world.pad_to(0x89CC).fill("FrOrder", 0, 1).member("FrOrderG", "FrOrder", client_id="127.0.0.1@i-order")


def _two_queues(topic: str) -> _Scene:
    return lambda world: world.topic(topic)


def _all_topics(world: _World) -> None:
    """Those of the run, the broker's own included: the simulator makes none of these before it needs one."""
    for topic in loads(_real(_LISTS_TOPICS).body)["topicList"]:
        world.topic(topic)
    world.broker.state.topics.delete("orders")


def _all_groups(world: _World) -> None:
    """Those of the run, the broker's own included."""
    for group in loads(_real(_LISTS_GROUPS).body)["subscriptionGroupTable"]:
        world.group(group)


_SCENES: Mapping[int, _Scene] = {
    **dict.fromkeys((1, 17, 99), _two_queues("FrA")),
    **dict.fromkeys((7, 76, 88, 96, 100, 115, 116, 117, 125), _two_queues("FrA")),
    2: lambda world: world.topic("FrA"),
    3: _nothing,
    4: lambda world: world.topic("FrA"),
    5: _a(1),
    6: _a(4),
    _ENDS_TRANSACTION: lambda world: world.pad_to(3697).begin_transactions(1),
    **dict.fromkeys((8, 9, 10, 11), _a(5)),
    12: _a(1, KEYS="k1 k2"),
    13: _nothing,
    16: _nothing,
    18: lambda world: world.topic("FrA"),
    20: lambda world: world.member("FrLiteG", "FrA", client_id="127.0.0.1@i-lite@STREAM"),
    **dict.fromkeys((21, 22, 23, 24, 25, 26, 27), _a(16)),
    **dict.fromkeys((28, 29, 30), _nothing),
    **dict.fromkeys((31, 32, 33), _a(16)),
    34: lambda world: world.topic("FrOrder"),
    **dict.fromkeys((35, 36, 37), _order(2, 2)),
    38: _order(2, 2),
    **dict.fromkeys((39, 40, 41), _order(2, 2)),
    42: lambda world: world.member("FrOrderG", "FrOrder").lock("FrOrderG"),
    **dict.fromkeys((43, 44, 45, 46, 47, 48), _order(2, 2)),
    49: _order_committed,
    50: lambda world: world.topic("%RETRY%FrOrderG"),
    **dict.fromkeys((51, 52), _order(2, 2)),
    _LISTS_TOPICS: _all_topics,
    66: _nothing,
    _LISTS_GROUPS: _all_groups,
    **dict.fromkeys((55, 56, 57, 58, 59), _nothing),
    60: _order(3, 2),
    **dict.fromkeys((61, 63, 65), _order(2, 2)),
    69: _consume_directly,
    70: _consume_directly,
    71: _order(3, 2),
    72: _order(3, 2),
    73: _order(3, 2),
    74: _order(3, 2),
    75: lambda world: world.member("FrOrderG", "FrOrder").commit("FrOrderG", "FrOrder", 0),
    77: _nothing,
    78: _order(2, 2),
    79: _nothing,
    80: _nothing,
    81: _nothing,
    82: lambda world: world.group("FrNewG").topic("%RETRY%FrOrderG"),
    83: lambda world: world.group("FrNewG"),
    84: lambda world: world.topic("FrNew"),
    85: _two_queues("FrNew"),
    86: lambda world: world.pad_to(35553).fill("FrConc", 0, 1),
    87: lambda world: world.topic("FrBcast").member("FrBcastG", "FrBcast", model=MessageModel.BROADCASTING),
    89: _nothing,
    **dict.fromkeys((90, 91, 92, 93), _sql),
    94: _nothing,
    97: lambda world: world.member("FrHbG", "FrA", fingerprint=-1736518207),
    98: _filtered("FrHbG"),
    101: _nothing,
    102: lambda world: world.fill("FrA", 1, 15),
    103: _nothing,
    **dict.fromkeys(range(104, 115), _filtered("FrNsG")),
    118: _reset,
    119: _reset,
    120: lambda world: world.fill("FrReset", 0, 3).group("FrResetG"),
    121: _nothing,
    122: _pushed_reset,
}
_NOT_REPLAYED: Mapping[str, frozenset[int]] = {
    "the simulator has no POP consumption": frozenset({124, 126, 127, 128, 129}),
    "its client left before the answer to this heartbeat, so there is none to compare with": frozenset({95}),
}
_HELD_AND_ANSWERED = frozenset({39, 41, 48})
"""Pulls that got their answer when the time to wait was over."""
_CLIENTS_ANSWER: Mapping[int, int] = {52: 53, 61: 62, 63: 64, 65: 64, 69: 68}
"""Administrator's request → the broker's request to the client, with the client's answer."""
_PUSH_WITH_A_MESSAGE = 68
_PUSH_WITH_OFFSETS = 123
_BODY_NOT_RECORDED = frozenset({72, 77})
_SAME_VALUES = frozenset({1, 17, _LISTS_TOPICS, 66, 99})
"""Answers whose bodies are compared by value, too."""


def _real(pair_id: int) -> RemotingCommand:
    """The recorded answer; of the list of groups as many as were recorded whole."""
    answer = recorded(_PAIR[pair_id]["response"])
    if pair_id == _LISTS_GROUPS:
        end_of_group = b'"whichBrokerWhenConsumeSlowly":1}'
        body = answer.body[: answer.body.rindex(end_of_group)] + end_of_group + b"}}"
        answer = replace(answer, body=body)
    return answer


def _values(body: bytes) -> object:
    """Decoded JSON; lists are in Java's arbitrary order."""
    content = loads(body)
    return {name: sorted(value) if name == "topicList" else value for name, value in content.items()}


def _answer(world: _World, pair: Mapping[str, Any]) -> RemotingCommand | None:
    command = recorded(pair["request"])
    outgoing = world.play(pair)
    answer = answer_in(outgoing, command)
    if pair["id"] in _HELD_AND_ANSWERED:
        assert answer is None
        world.clock.advance(_HELD_FOR_S)
        answer = answer_in(world.broker.look_at_clock(), command)
    if pair["id"] in _CLIENTS_ANSWER:
        (push,) = outgoing
        given = recorded(_PAIR[_CLIENTS_ANSWER[pair["id"]]]["response"])
        given = replace(given, opaque=push.command.opaque)
        answer = answer_in(world.broker.handle(push.peer, given), command)
    return answer


@pytest.mark.parametrize("pair_id", sorted(_SCENES), ids=lambda i: f"{i}-{_PAIR[i]['scenario']}")
def test_the_simulator_answers_as_the_real_broker_did(pair_id: int) -> None:
    """A1, A4, E1, G1, G2: also where the real broker gave no answer, or none yet."""
    pair, world = _PAIR[pair_id], _World()
    _SCENES[pair_id](world)

    answer = _answer(world, pair)

    if pair["response"] is None:
        assert answer is None
        return
    assert answer is not None
    if pair_id in _BODY_NOT_RECORDED:
        assert answer.body
        answer = replace(answer, body=bytes(pair["response"]["body_len"]))
    real = _real(pair_id)
    assert_same_answer(answer, real)
    if pair_id in _SAME_VALUES:
        assert _values(answer.body) == _values(real.body)
    elif pair_id == _LISTS_GROUPS:
        table = "subscriptionGroupTable"
        assert loads(answer.body)[table] == loads(real.body)[table]


def test_an_ended_transaction_is_stored_where_it_was_sent_to() -> None:
    """G1: the recorded commit, a oneway, has the recorded effect."""
    pair, world = _PAIR[_ENDS_TRANSACTION], _World()
    _SCENES[_ENDS_TRANSACTION](world)

    assert world.play(pair) == []

    (stored,) = stored_messages(world.broker, "FrTx")
    assert (stored.topic, stored.queue_id, stored.body) == ("FrTx", 1, b"COMMIT_MESSAGE")


def test_the_simulator_asks_for_a_transaction_as_the_real_broker_did() -> None:
    """G1: CHECK_TRANSACTION_STATE shows the half message, stored again, as it was sent."""
    world, real = (
        _World().begin_transactions(3).pad_to(5759),
        recorded(_PAIR[_ASKS_FOR_TRANSACTION]["request"]),
    )
    world.clock.advance(world.broker.state.settings.transaction_timeout_s)

    push, *_ = [each.command for each in world.broker.look_at_clock()]

    assert (push.code, push.flag, push.ext_fields) == (real.code, real.flag, real.ext_fields)
    (shown,), (really_shown,) = decode_messages(push.body, "broker-a"), decode_messages(real.body, "broker-a")
    of_the_run: dict[str, Any] = {"store_timestamp": 0, "born_host": ""}
    assert shown._replace(**of_the_run) == really_shown._replace(**of_the_run)


def test_a_heartbeat_whose_expression_is_no_sql_is_answered_all_the_same() -> None:
    """A4: pair 95, whose recorded client did not wait for the answer."""
    pair, world = _PAIR[95], _World()

    answer = answer_in(world.play(pair), recorded(pair["request"]))

    assert answer is not None
    assert (answer.code, answer.ext_fields) == (0, recorded(_PAIR[34]["response"]).ext_fields)


@pytest.mark.parametrize(
    ("asked", "pushed"),
    [(52, 53), (61, 62), (63, 64), (69, 68), (122, 123), (18, 19)],
    ids=lambda i: f"{i}-{_PAIR[i]['name']}",
)
def test_the_simulator_sends_its_clients_what_the_real_broker_sent(asked: int, pushed: int) -> None:
    """A4: requests of the broker's own: code, flag, ext fields and body."""
    world, real = _World(), recorded(_PAIR[pushed]["request"])
    _SCENES[asked](world)

    (push,) = [each.command for each in world.play(_PAIR[asked]) if not each.command.is_response]

    assert (push.code, push.flag, push.language, push.version) == (real.code, real.flag, 0, 479)
    assert push.ext_fields == real.ext_fields
    if pushed == _PUSH_WITH_A_MESSAGE:
        (message,) = decode_messages(push.body, "broker-a")
        assert message.topic == push.ext_fields["topic"]
    elif pushed == _PUSH_WITH_OFFSETS:  # in Java's arbitrary order
        assert decode_offset_table(push.body) == decode_offset_table(real.body)
    else:
        assert push.body == real.body


def test_every_request_of_the_recording_is_replayed_or_said_why_not() -> None:
    asked = {pair["id"] for pair in PAIRS if pair["id"] < 130 and pair["initiator"] == "client"}
    assert asked - _SCENES.keys() == frozenset().union(*_NOT_REPLAYED.values())
