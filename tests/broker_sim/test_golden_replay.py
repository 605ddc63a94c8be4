"""The recorded requests of RocketMQ 5.3.3 from pair 130 on,
replayed in their order against a simulated broker.

They were recorded without leaving any out, so each is answered by a
broker in the state the others brought it to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from broker_sim.layout import Host
from broker_sim.nameserver import NameServer
from broker_sim.replies import Outgoing, Peer
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import Message, MessageQueue
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.broker_sim.exchange import add_topic, answer_in, make_broker
from tests.broker_sim.recorded import PAIRS, assert_same_answer, recorded
from tests.helpers.fake_clock import FakeClock

_FIRST_REPLAYED, _LAST_REPLAYED = 130, 236
_PEER = Peer(1, Host("127.0.0.1", 55180))

_HELD_UNTIL_TIMEOUT = 143
_HELD_UNTIL_ARRIVAL = 144


class _World:
    """A broker and a name server as they were when the recording reached pair 130."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_795_207_281.0)
        self.broker = make_broker(self.clock, settings=BrokerSettings(enable_property_filter=True))
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
        self.pushes: list[RemotingCommand] = []

    def play(self, pair: Mapping[str, Any]) -> RemotingCommand | None:
        command = recorded(pair["request"])
        endpoint = self.name_server if pair["server"] == "namesrv" else self.broker
        answer = answer_in(self.noted(endpoint.handle(_PEER, command)), command)
        if pair["id"] == _HELD_UNTIL_TIMEOUT:
            assert answer is None
            self.clock.advance(2)
            answer = answer_in(self.noted(self.broker.look_at_clock()), command)
        return answer

    def noted(self, outgoing: list[Outgoing]) -> list[Outgoing]:
        """What is sent, after the broker's own requests in it were written down."""
        self.pushes += [each.command for each in outgoing if not each.command.is_response]
        return outgoing


def _is_replayed(pair: Mapping[str, Any]) -> bool:
    return bool(_FIRST_REPLAYED <= pair["id"] <= _LAST_REPLAYED and pair["initiator"] == "client")


def _replay(world: _World) -> Iterator[tuple[dict[str, Any], RemotingCommand]]:
    """Every pair with the simulator's answer."""
    held: dict[str, Any] | None = None
    for pair in filter(_is_replayed, PAIRS):
        if pair["id"] == _HELD_UNTIL_ARRIVAL:
            held = pair
            assert world.play(pair) is None
            continue
        if held is not None:  # this is the send that wakes it
            outgoing = world.noted(world.broker.handle(_PEER, recorded(pair["request"])))
            for each in (held, pair):
                answer = answer_in(outgoing, recorded(each["request"]))
                assert answer is not None
                yield each, answer
            held = None
            continue
        answer = world.play(pair)
        assert answer is not None, f"pair {pair['id']} was not answered"
        yield pair, answer


_WORLD = _World()
_ANSWERED = list(_replay(_WORLD))


@pytest.mark.parametrize(
    ("pair", "answer"), _ANSWERED, ids=[f"{pair['id']}-{pair['scenario']}" for pair, _ in _ANSWERED]
)
def test_the_simulator_answers_as_the_real_broker_did(pair: dict[str, Any], answer: RemotingCommand) -> None:
    """A1, A4, F2, F3: response code, ext field names and values, remark and body shape."""
    assert_same_answer(answer, recorded(pair["response"]))


def test_the_simulator_sends_its_clients_what_the_real_broker_sent() -> None:
    """B5: NOTIFY_CONSUMER_IDS_CHANGED, as often and in the same order: pairs 147 and 236."""
    real = [
        recorded(pair["request"])
        for pair in PAIRS
        if _FIRST_REPLAYED <= pair["id"] <= _LAST_REPLAYED and pair["initiator"] == "server"
    ]

    assert [replace(push, opaque=0) for push in _WORLD.pushes] == [replace(push, opaque=0) for push in real]


def test_the_replay_covers_every_error_scenario_of_the_recording() -> None:
    covered = {pair["scenario"] for pair, _ in _ANSWERED}
    everything = {pair["scenario"] for pair in PAIRS if _FIRST_REPLAYED <= pair["id"] <= _LAST_REPLAYED}
    assert everything == covered
