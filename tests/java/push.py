"""One DefaultMQPushConsumer of a JVM of clients."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tests.both.support import ANSWER_S
from tests.helpers.wait import wait_until
from tests.java.clients import JavaClients

_POLL_S = 0.05


class PushConsumer:
    """A member of a group; its name is the client's instance name."""

    def __init__(self, java: JavaClients, name: str, group: str, topic: str, **how: object) -> None:
        """Start it with a listener that succeeds, or as ``how`` says (``PushConsumerCalls.start``)."""
        self.name = name
        self._java = java
        java.call(
            "push.start", name=name, group=group, topic=topic, **{"tags": "*", "persistMillis": 200, **how}
        )

    def delivered(self, at_least: int = 0, *, timeout_s: float = ANSWER_S) -> list[dict[str, Any]]:
        """The messages its listener saw, once there are ``at_least`` or the time is over."""
        events = self._java.call(
            "push.events", name=self.name, atLeast=at_least, timeoutMillis=int(timeout_s * 1000)
        )
        return [message for event in events for message in event["messages"]]

    def queues(self, topic: str) -> dict[int, bool]:
        """Queue ids of the topic it has now, each with whether the broker locked it for this member."""
        assignment = self._java.call("push.assignment", name=self.name)
        return {each["queueId"]: each["isLocked"] for each in assignment if each["topic"] == topic}

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
