from __future__ import annotations

import threading
from pathlib import Path

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.consume.membership import MembershipTiming
from tests.applications import tail_loss
from tests.applications.order_flow import OrderFlow, Step, not_as_sent, stored_orders
from tests.applications.running_application import DIE, Group
from tests.applications.schedule import LOSING
from tests.applications.tail_loss import TailLoss
from tests.helpers.cluster import ClusterUnderTest
from tests.helpers.orders import _without
from tests.helpers.wait import wait_until


def test_what_a_broker_lost_is_known_and_orders_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_loss, "_TAIL_S", 0.0)
    with SimCluster(brokers=2) as sim:
        cluster = ClusterUnderTest(sim, "sim")
        topic = cluster.create_topic(queues=2)
        group = Group(
            name_servers=sim.name_servers,
            topic=topic,
            group="g",
            folder=tmp_path,
            timing=MembershipTiming(),
        )
        loss = TailLoss(cluster, group)
        with OrderFlow(sim.name_servers, topic, per_second=500.0) as flow:
            loss.flow = flow
            wait_until(lambda: len(flow.sent) > 10)

            def kill() -> None:
                wait_until((tmp_path / DIE).exists)
                sent = len(flow.sent)
                wait_until(lambda: len(flow.sent) > sent + 50)
                (tmp_path / DIE).unlink()

            killer = threading.Thread(target=kill)
            killer.start()
            text = loss.happen()
            killer.join()
            sent = len(flow.sent)
            wait_until(lambda: len(flow.sent) > sent + 10)
            flow.finish()
            stored, _ = stored_orders(cluster.broker_addresses, flow.queues)

    assert text == f"{len(loss.lost)} messages of {LOSING}"
    assert {step.broker_name for step in loss.lost} == {LOSING}
    assert not_as_sent(flow.sent, stored, loss.lost) == []
    assert not_as_sent(flow.sent, stored) != []


def test_a_sink_may_have_what_was_lost_once() -> None:
    lost = Step("orders", LOSING, 0, 7, "order-1", "paid")
    again = Step("orders", LOSING, 0, 7, "order-2", "paid")

    assert list(_without([lost, again], {lost})) == [again]
    assert list(_without([lost, again, lost], {lost})) == [again, lost]
