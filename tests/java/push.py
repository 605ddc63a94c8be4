"""One DefaultMQPushConsumer of a JVM of clients."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.model import MessageQueue
from tests.both.support import ANSWER_S
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients
from tests.real_broker import plain_remoting

# A heartbeat in flight may keep one with a newer subscription from being sent; until the next,
# pulls are refused.
_SOON_HEALED = {"heartbeatMillis": 1000}
_GET_PRODUCER_CONNECTION_LIST = 204


class PushConsumer:
    """A member of a group; its name is the client's instance name."""

    def __init__(self, java: JavaClients, name: str, group: str, topic: str, **how: object) -> None:
        """Start it with a listener that succeeds, or with settings ``how`` (``PushConsumerCalls.start``)."""
        self.name = name
        self.group = group
        self._java = java
        java.call("push.start", name=name, group=group, topic=topic, **{"tags": "*", **_SOON_HEALED, **how})

    def delivered(self, at_least: int = 0, *, timeout_s: float = ANSWER_S) -> list[dict[str, Any]]:
        """Return the messages its listener saw, once there are ``at_least`` or the time is over."""
        events = self._java.call(
            "push.events", name=self.name, count=at_least, timeoutMillis=int(timeout_s * 1000)
        )
        return [message for event in events for message in event["messages"]]

    def queues(self, topic: str) -> dict[int, bool]:
        """Return its queue ids of the topic, each with whether the broker locked it for this member."""
        assignment = self._java.call("push.assignment", name=self.name)
        return {each["queueId"]: each["isLocked"] for each in assignment if each["topic"] == topic}

    def persist(self) -> None:
        """Let it send its offsets now."""
        self._java.call("push.persist", name=self.name)

    def stop(self) -> Future[Any]:
        """Begin its shutdown."""
        return self._java.submit("push.stop", name=self.name)


def await_shares(topic: str, queue_ids: set[int], *members: PushConsumer, is_orderly: bool) -> None:
    """Wait until the members have the queues between them, evenly, and hold their locks if orderly."""

    def is_shared() -> bool:
        shares = [member.queues(topic) for member in members]
        has_all = sorted(queue_id for share in shares for queue_id in share) == sorted(queue_ids)
        is_even = max(map(len, shares)) - min(map(len, shares)) <= 1
        return has_all and is_even and (not is_orderly or all(all(share.values()) for share in shares))

    wait_until(is_shared, 3 * ANSWER_S, reason=f"{len(members)} members with all of {topic} between them")


def await_producer(address: str, group: str) -> None:
    """Wait until the broker lists the producer: its first heartbeat comes a second after its start."""
    wait_until(
        lambda: (
            plain_remoting.call(address, _GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}).code == 0
        ),
        2 * ANSWER_S,
        reason=f"A heartbeat of {group}",
    )


def await_committed(
    member: PushConsumer,
    client: BrokerClient,
    address: str,
    queues: Iterable[MessageQueue],
    end: int,
) -> None:
    """Wait until the broker has the member's group's offset ``end`` in all the queues,
    sent by this member.
    """

    def committed() -> set[int]:
        member.persist()
        return {client.query_consumer_offset(address, member.group, queue) for queue in queues}

    wait_until(
        lambda: committed() == {end}, 3 * ANSWER_S, reason=f"Offset {end} of {member.group} in {queues}"
    )
