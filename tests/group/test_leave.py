"""What a process leaves behind at the brokers, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pyspark_rocketmq.model import MessageQueue
from tests.group.conftest import SOON_S, Members, await_listed, await_plannable
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.helpers.wait import wait_until


class Leaving:
    """A process with a member called ``leaving``, which has every queue."""

    def __init__(self, cluster: ClusterUnderTest, topic: str, group: str, *how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.group.leaving_driver", cluster.name_servers, topic, group, *how],
            cwd=REPO,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "settled\n"

    def terminate(self) -> None:
        self.process.terminate()

    def end_input(self) -> None:
        """As when the process ends that it works for."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Leaving]


@pytest.fixture
def start(cluster: ClusterUnderTest, members: Members) -> Iterator[Start]:
    """Starts the process."""
    started: list[Leaving] = []

    def run(topic: str, *how: str) -> Leaving:
        started.append(Leaving(cluster, topic, members.group, *how))
        return started[-1]

    yield run
    for process in started:
        process.close()


@pytest.mark.parametrize("how", ["", "locked"])
@pytest.mark.parametrize("ending", [Leaving.terminate, Leaving.end_input])
def test_a_process_that_ends_gives_its_queues_back(
    ending: Callable[[Leaving], None], how: str, start: Start, cluster: ClusterUnderTest, members: Members
) -> None:
    """B7: SIGTERM is what Spark ends a query's planner with; if the driver dies, its input ends.

    A signal comes at any moment, also when the main thread holds a lock that is needed for leaving.
    """
    topic = cluster.create_topic(queues=2)
    leaving = start(topic, how)

    ending(leaving)

    assert leaving.process.wait(SOON_S) == (128 + signal.SIGTERM if ending is Leaving.terminate else 0)
    one = members.join(cluster.name_servers, topic, "one")
    await_plannable(
        one, {MessageQueue(topic, name, n) for name in cluster.broker_addresses for n in range(2)}
    )
    for address in cluster.broker_addresses.values():
        await_listed(one, address)


def test_a_handler_that_was_there_is_called_too(
    start: Start, cluster: ClusterUnderTest, members: Members
) -> None:
    leaving = start(cluster.create_topic(queues=2), "handler")

    leaving.terminate()

    leaving.process.wait(SOON_S)
    assert leaving.process.stdout is not None
    assert leaving.process.stdout.read() == "told\n"


def test_a_process_that_is_killed_leaves_its_locks(
    start: Start, cluster: ClusterUnderTest, members: Members
) -> None:
    """C2: nobody unlocks for it; its queues are refused to others until the locks expire."""
    topic = cluster.create_topic(queues=2)
    leaving = start(topic)
    os.kill(leaving.process.pid, signal.SIGKILL)
    leaving.process.wait(SOON_S)
    one = members.join(cluster.name_servers, topic, "one")

    wait_until(lambda: one._machine._members == ("one",), SOON_S, reason="a list without the dead one")
    queues = [MessageQueue(topic, "broker-a", n) for n in range(2)]
    address = cluster.broker_addresses["broker-a"]

    assert one._calls.brokers.lock_batch(address, members.group, "one", queues) == frozenset()
