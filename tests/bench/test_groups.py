from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.group_member import join, member_process, plannable
from bench.groups import run
from broker_sim.cluster import SimCluster
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.wait import wait_until


@contextmanager
def simulated() -> Iterator[ClusterUnderTest]:
    with SimCluster(brokers=1) as cluster:
        yield ClusterUnderTest(cluster, "sim")


def test_a_short_run_counts_one_lock_call_per_broker_and_renewal() -> None:
    result = run(rounds=2, triggers=2, takeovers=1, kills=0, servers=simulated)
    figures = {row[0]: row[2] for row in result.rows}

    assert figures["lock calls per broker and renewal"] == "1.000"
    assert len(result.targets) == 4
    assert all(target.seen.median > 0 for target in result.targets)


def test_a_member_in_a_process_of_its_own_takes_its_share() -> None:
    with simulated() as cluster:
        topic = cluster.create_topic(queues=4)
        stayer = join(cluster.name_servers, topic, "stayer")
        try:
            wait_until(lambda: plannable(stayer) == 4, reason="all queues of a single member")
            with member_process(cluster.name_servers, topic, "victim"):
                wait_until(lambda: plannable(stayer) == 2, reason="half of the queues of one of two")
        finally:
            stayer.stop(10.0)
