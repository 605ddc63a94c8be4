"""Two Spark applications of one group hand queues to each other in every way there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import OffsetRow
from tests.applications.chaos import TIMING
from tests.applications.order_flow import OrderFlow, not_as_sent, stored_orders
from tests.applications.running_application import Group, RunningApplication, wait_patiently
from tests.applications.verdict import judge
from tests.helpers.retries import rows_but_retries

FORGETFUL_S = 5.0
"""Time after which the simulated brokers forget locks and members."""
LONG_S = 240.0
"""Time limit for an application to start on a busy machine."""
QUEUES = 8


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    settings = BrokerSettings(lock_max_live_s=FORGETFUL_S, channel_expired_s=FORGETFUL_S)
    with SimCluster(brokers=2, settings=settings) as cluster:
        cluster.create_topic("orders", queues=QUEUES // 2)
        yield cluster


class Handover:
    """The group's offset store, which has the owner and the progress of each queue."""

    def __init__(self, group: Group, cluster: SimCluster) -> None:
        self._group = group
        self._cluster = cluster
        self._store = DeltaOffsetStore(group.offsets)

    def rows(self) -> list[OffsetRow]:
        return list(rows_but_retries(self._store.read(self._group.group)).values())

    def await_owners(self, *applications: RunningApplication) -> None:
        """Wait until these have all queues between them, each some, and each queue has moved on since."""
        wanted = {application.client_id for application in applications}

        def are_owners() -> bool:
            # Real brokers do this every ten seconds.
            self._cluster.look_at_clock()
            rows = self.rows()
            return len(rows) == QUEUES and {row.owner_id for row in rows} == wanted

        wait_patiently(are_owners, LONG_S, reason=f"{wanted} having all queues")
        claimed = {row.queue: row.next_offset for row in self.rows()}
        wait_patiently(
            lambda: all(row.next_offset > claimed[row.queue] for row in self.rows()),
            LONG_S,
            reason=f"progress of all queues by {wanted}",
        )

    def await_end(self, ends: Mapping[MessageQueue, int]) -> None:
        wait_patiently(
            lambda: all(row.next_offset >= ends[row.queue] for row in self.rows()), LONG_S, reason="the end"
        )


@pytest.mark.long
@pytest.mark.driver
@pytest.mark.sim
@pytest.mark.timeout(900)
def test_queues_change_hands_without_loss_doubling_or_disorder(cluster: SimCluster, tmp_path: Path) -> None:
    """B5, B7, C1, C5, H5: shared, paused beyond the locks' life, killed and back, stopped in good order."""
    group = Group(
        name_servers=cluster.name_servers, topic="orders", group="handover", folder=tmp_path, timing=TIMING
    )
    handover = Handover(group, cluster)
    with ExitStack() as ending, OrderFlow(cluster.name_servers, "orders", per_second=20.0) as flow:

        def start(instance: str) -> RunningApplication:
            application = RunningApplication(group, instance)
            ending.callback(application.close)
            return application

        one, two = start("one"), start("two")
        handover.await_owners(one, two)

        one.pause()
        handover.await_owners(two)
        # While the killed one starts again, the paused one discovers that it was fenced off.
        two.kill()
        again = start("two")
        one.resume()
        handover.await_owners(one, again)

        one.ask_to_stop()
        handover.await_owners(again)
        assert one.await_exit(LONG_S) == 0, one.log.read_text()[-4000:]

        flow.finish()
        stored, ends = stored_orders(cluster.broker_addresses, flow.queues)
        handover.await_end(ends)
        again.ask_to_stop()
        assert again.await_exit(LONG_S) == 0, again.log.read_text()[-4000:]

    assert not_as_sent(flow.sent, stored) == []
    verdict = judge(group.sink, stored)
    assert verdict.is_clean, verdict.text
    assert {wait.after for wait in verdict.waits} == {"one", "two"}
