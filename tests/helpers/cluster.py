"""A running cluster as tests see it, whether it is the simulator or the real RocketMQ."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.faults import FaultScript
from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

SIM_ONLY = pytest.mark.parametrize("cluster", [pytest.param("sim", marks=pytest.mark.sim)], indirect=True)
"""Marks a test of a situation that only the simulator can be put into."""
REAL_ONLY = pytest.mark.parametrize("cluster", [pytest.param("real", marks=pytest.mark.real)], indirect=True)
"""Marks a test of something that only the real RocketMQ can do."""
LONG_ON_REAL = pytest.mark.parametrize(
    "cluster",
    [
        pytest.param("sim", marks=pytest.mark.sim),
        pytest.param("real", marks=[pytest.mark.real, pytest.mark.long]),
    ],
    indirect=True,
)
"""For a test in which the broker does nothing that others do not test on the real one."""

_UPDATE_AND_CREATE_TOPIC = 17
_GET_ROUTE_INFO_BY_TOPIC = 105
_READ_AND_WRITE = 6

_numbers = itertools.count(1)


class Backend(Protocol):
    """Operations that both the simulator and the harness of the real broker offer."""

    @property
    def name_servers(self) -> str:
        """``host:port`` of the name server."""
        ...

    @property
    def broker_addresses(self) -> Mapping[str, str]:
        """Broker name to ``host:port``."""
        ...

    def stop_broker(self, name: str) -> None:
        """Make a broker unreachable; its messages stay."""
        ...

    def start_broker(self, name: str) -> None:
        """Bring a stopped broker back at its old address."""
        ...

    def restart_name_server(self) -> None:
        """Have the name server forget all brokers; a real one's register again by themselves within 30 s."""
        ...

    def register_brokers(self) -> None:
        """Have the brokers register again now."""
        ...


class ClusterUnderTest:
    """One test's view of a backend that is shared by the whole run.

    Topics and groups have names from :meth:`unique_name`, so tests do not disturb each other;
    brokers a test stopped are started again by :meth:`restore`.
    """

    def __init__(self, backend: Backend, kind: str) -> None:
        self.backend = backend
        self.kind = kind
        """``sim`` or ``real``."""
        self._stopped: set[str] = set()
        self._is_forgetful = False

    @property
    def name_servers(self) -> str:
        """``host:port`` of the name server, as option ``nameServers`` takes it."""
        return self.backend.name_servers

    @property
    def broker_addresses(self) -> Mapping[str, str]:
        """Broker name to ``host:port``."""
        return self.backend.broker_addresses

    @property
    def faults(self) -> FaultScript:
        """The script of the simulator's faults, for tests that run only on it."""
        assert isinstance(self.backend, SimCluster)
        return self.backend.faults

    def unique_name(self, prefix: str = "topic") -> str:
        """Return a topic or group name that no other test of this run has."""
        return f"{prefix}-{next(_numbers)}"

    def create_topic(
        self,
        topic: str | None = None,
        queues: int = 4,
        *,
        brokers: Collection[str] | None = None,
        perm: int = _READ_AND_WRITE,
        attributes: str = "",
    ) -> str:
        """Create a topic with ``queues`` queues on each broker (all unless named) and return its name.

        It is routed like that when this returns.
        """
        topic = topic or self.unique_name()
        names = self.broker_addresses.keys() if brokers is None else brokers
        for name in names:
            answer = plain_remoting.call(
                self.broker_addresses[name],
                _UPDATE_AND_CREATE_TOPIC,
                _topic_fields(topic, queues, perm, attributes),
            )
            if answer.code != 0:
                raise AssertionError(f"{name} refused topic {topic}: {answer.code} {answer.remark}")
        wanted = {(name, queues, perm) for name in names}
        wait_until(
            lambda: self._routed_queues(topic).issuperset(wanted),
            reason=f"The route of topic {topic} over {sorted(names)}",
        )
        return topic

    def routed_brokers(self, topic: str) -> set[str]:
        """Return the brokers that the name server has for ``topic``; none if it does not have the topic."""
        return {data["brokerName"] for data in self._route(topic).get("brokerDatas", ())}

    def stop_broker(self, name: str) -> None:
        """Make a broker unreachable until :meth:`start_broker` or the end of the test."""
        self.backend.stop_broker(name)
        self._stopped.add(name)

    def start_broker(self, name: str) -> None:
        """Bring a stopped broker back at its old address with its messages."""
        self.backend.start_broker(name)
        self._stopped.discard(name)

    def restart_name_server(self) -> None:
        """Have the name server forget all brokers until :meth:`register_brokers` or the end of the test,
        or up to 30 s.
        """
        self.backend.restart_name_server()
        self._is_forgetful = True

    def register_brokers(self) -> None:
        """Register again the brokers that the name server forgot in :meth:`restart_name_server`."""
        self.backend.register_brokers()
        self._is_forgetful = False

    def restore(self) -> None:
        """Start every broker this test stopped, let the name server know all,
        and let no fault of its script meet the next test.
        """
        for name in tuple(self._stopped):
            self.start_broker(name)
        if self._is_forgetful:
            self.register_brokers()
        if self.kind == "sim":
            self.faults.clear()

    def _routed_queues(self, topic: str) -> set[tuple[str, int, int]]:
        """Return each broker's number of queues and its permission, as the name server has them."""
        return {
            (data["brokerName"], data["readQueueNums"], data["perm"])
            for data in self._route(topic).get("queueDatas", ())
        }

    def _route(self, topic: str) -> Mapping[str, Any]:
        """Return the route; empty if the name server does not have the topic."""
        answer = plain_remoting.call(self.name_servers, _GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
        route: Mapping[str, Any] = json.loads(answer.body) if answer.code == 0 else {}
        return route


def _topic_fields(topic: str, queues: int, perm: int, attributes: str) -> dict[str, str]:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return {**fields, "attributes": attributes} if attributes else fields
