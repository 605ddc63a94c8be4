"""The recorded requests of RocketMQ 5.3.3, put to a simulated broker in the same state.

The pairs are replayed in their order; what the recording changed by administration requests the simulator does
not know (25, 200) is set directly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_sim.broker import Broker
from broker_sim.groups import SubscriptionGroup
from broker_sim.layout import Host
from broker_sim.nameserver import NameServer
from broker_sim.peers import Peer
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.command import RemotingCommand, SerializeType, decode_frame, decode_parts
from pyspark_rocketmq.wire.json_quirks import loads
from tests.broker_sim.exchange import add_topic, answer_in, make_broker
from tests.helpers.fake_clock import FakeClock

_PAIRS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "frames.jsonl").read_text().splitlines()[1:]
]
_FIRST_REPLAYED, _LAST_REPLAYED = 130, 236
_PEER = Peer(1, Host("127.0.0.1", 55180))

_UNKNOWN_TO_THE_SIMULATOR = {12, 25, 33, 36, 200, 307}
"""Their pairs are skipped; 25 and 200 act through ``_ADMINISTRATION``."""
_SQL92_WITH_PROPERTY_FILTER = 136  # the recorded broker had enablePropertyFilter=true
_HELD_UNTIL_TIMEOUT = 143
_HELD_UNTIL_ARRIVAL = 144


def _settings(**changes: object) -> Callable[[Broker], None]:
    def apply(broker: Broker) -> None:
        broker.state.settings = replace(broker.state.settings, **changes)

    return apply


def _consume_enable(*, value: bool) -> Callable[[Broker], None]:
    return lambda broker: broker.state.groups.put(
        SubscriptionGroup(name="FrRawG", consume_enable=value, consume_broadcast_enable=False)
    )


_ADMINISTRATION: Mapping[int, Callable[[Broker], None]] = {
    195: _settings(auto_create_subscription_group=False),
    201: _settings(auto_create_subscription_group=True),
    202: _consume_enable(value=False),
    204: _consume_enable(value=True),
    209: _settings(broker_permission=2),
    219: _settings(broker_permission=4),
    222: _settings(broker_permission=6),
    223: _settings(lite_pull_message_enable=False),
    225: _settings(lite_pull_message_enable=True),
}


class _World:
    """A broker and a name server as they were when the recording reached pair 130."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_795_207_281.0)
        self.broker = make_broker(self.clock, settings=BrokerSettings(mirror_header_form=False))
        self.broker.listening_at(Host("127.0.0.1", 20911))
        for topic in ("FrA", "FrConc", "FrBcast", "FrOrder", "FrPop", "FrReset", "FrSql"):
            add_topic(self.broker, topic, 2)
        add_topic(self.broker, "FrAutoCreated", 2)
        add_topic(self.broker, "FrPerm", 2, perm=4)
        # The recorded broker numbers queues for "-1" at random; it drew queue 1.
        next(self.broker.state.numbers)
        for queue_id in (0, 1):
            queue = MessageQueue("FrA", "broker-a", queue_id)
            for number in range(16):
                tag = "TagA" if number % 2 else "TagB"
                self.broker.put(queue, [Message(topic="FrA", body=b"sync", properties={"TAGS": tag})])
                self.clock.advance(0.001)
        self.name_server = NameServer(mirror_header_form=False)
        self.name_server.register("broker-a", self.broker.state.host, self.broker.state.topics)

    def play(self, pair: Mapping[str, Any]) -> RemotingCommand | None:
        administration = _ADMINISTRATION.get(pair["id"])
        if administration is not None:
            administration(self.broker)
            return None
        command = _command(pair["request"])
        endpoint = self.name_server if pair["server"] == "namesrv" else self.broker
        answer = answer_in(endpoint.handle(_PEER, command), command)
        if pair["id"] == _HELD_UNTIL_TIMEOUT:
            assert answer is None
            self.clock.advance(2)
            answer = answer_in(self.broker.look_at_clock(), command)
        return answer


def _command(recorded: Mapping[str, Any]) -> RemotingCommand:
    body = bytes.fromhex(recorded["body_hex"])
    body += bytes(recorded["body_len"] - len(body))  # long bodies are recorded in part; this one is zeros
    if recorded["serialize"] == "JSON":
        return decode_parts(SerializeType.JSON << 24, recorded["header"].encode("utf-8", "replace"), body)
    header = bytes.fromhex(recorded["header_hex"])
    mark = (SerializeType.ROCKETMQ << 24 | len(header)).to_bytes(4, "big")
    return decode_frame(mark + header + body)


def _is_replayed(pair: Mapping[str, Any]) -> bool:
    return (
        _FIRST_REPLAYED <= pair["id"] <= _LAST_REPLAYED
        and pair["initiator"] == "client"
        and (pair["code"] not in _UNKNOWN_TO_THE_SIMULATOR or pair["id"] in _ADMINISTRATION)
        and pair["id"] != _SQL92_WITH_PROPERTY_FILTER
    )


def _replay() -> Iterator[tuple[dict[str, Any], RemotingCommand]]:
    """Every pair with the simulator's answer."""
    world = _World()
    held: dict[str, Any] | None = None
    for pair in filter(_is_replayed, _PAIRS):
        if pair["id"] == _HELD_UNTIL_ARRIVAL:
            held = pair
            assert world.play(pair) is None
            continue
        if held is not None:  # this is the send that wakes it
            outgoing = world.broker.handle(_PEER, _command(pair["request"]))
            for each in (held, pair):
                answer = answer_in(outgoing, _command(each["request"]))
                assert answer is not None
                yield each, answer
            held = None
            continue
        answer = world.play(pair)
        if pair["id"] not in _ADMINISTRATION:
            assert answer is not None, f"pair {pair['id']} was not answered"
            yield pair, answer


_ANSWERED = list(_replay())


@pytest.mark.parametrize(
    ("pair", "answer"), _ANSWERED, ids=[f"{pair['id']}-{pair['scenario']}" for pair, _ in _ANSWERED]
)
def test_the_simulator_answers_as_the_real_broker_did(pair: dict[str, Any], answer: RemotingCommand) -> None:
    """A1, A4, F2, F3: response code, ext field names and values, remark and body shape."""
    real = _command(pair["response"])
    assert (answer.code, answer.opaque, answer.flag) == (real.code, real.opaque, real.flag)
    assert answer.serialize_type is real.serialize_type
    assert answer.ext_fields.keys() == real.ext_fields.keys()
    assert _stable(answer.ext_fields) == _stable(real.ext_fields)
    assert _remark(answer) == _remark(real)
    assert _shape(answer) == _shape(real)


def test_the_replay_covers_every_error_scenario_of_the_recording() -> None:
    covered = {pair["scenario"] for pair, _ in _ANSWERED}
    recorded = {pair["scenario"] for pair in _PAIRS if _FIRST_REPLAYED <= pair["id"] <= _LAST_REPLAYED}
    assert recorded - covered == {"err_sendback", "err_view", "err_query"}


def _stable(ext_fields: Mapping[str, str]) -> dict[str, str]:
    """Ids are of the run."""
    return {name: value for name, value in ext_fields.items() if name not in {"msgId", "transactionId"}}


def _remark(command: RemotingCommand) -> str:
    """Ports masked; Java's own exceptions and an empty remark say nothing to compare."""
    remark = command.remark or ""
    if command.code == 1 and not remark.startswith("no consumer"):
        return "an exception"
    return re.sub(r"( Producer: .*|:\d{4,5})", "", remark)


def _shape(command: RemotingCommand) -> object:
    """JSON bodies: all key names and list lengths; stored messages: how many."""
    if not command.body:
        return None
    if command.body[:1] == b"{":
        return _outline(loads(command.body))
    return "messages"


def _outline(value: object) -> object:
    if isinstance(value, dict):
        return {name: _outline(item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        return [_outline(item) for item in value]
    return type(value).__name__
