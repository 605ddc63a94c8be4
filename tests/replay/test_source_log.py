"""A topic of a replay was deleted and made again, or a master of it is away, between two runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from broker_sim.cluster import SimCluster
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.client.pool import process_pool
from pyspark_rocketmq.client.pull_connection import close_idle_connections
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import DataLoss, OptionError, TargetQueueAway, TransportError
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.replay import replay
from pyspark_rocketmq.replay.record import ReplayRecord
from pyspark_rocketmq.replay.replay import Replay, ReplaySummary
from tests.helpers.administrator import Administrator
from tests.helpers.wait import PATIENCE_S
from tests.source.conftest import PATIENT, message
from tests.source.test_slave_reads import let_slaves_act

ORDERS, COPIES = MessageQueue("orders", "broker-a", 0), MessageQueue("copies", "broker-b", 0)
Run = Callable[..., ReplaySummary]


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[SimCluster]:
    """A broker of the source and one of the target, each with a slave, which may be listed as master."""
    settings = BrokerSettings(slave_read_enable=True)
    with SimCluster(brokers=2, replicas=1, settings=settings) as sim:
        if getattr(request, "param", False):
            let_slaves_act(sim)
        for queue in (ORDERS, COPIES):
            sim.create_topic(queue.topic, queues=1, brokers=[queue.broker_name])
        yield sim
        close_idle_connections()


def produce(sim: SimCluster, count: int) -> None:
    sim.put(ORDERS, [message(ORDERS.topic, number) for number in range(count)])


def make_again(sim: SimCluster, count: int, queue: MessageQueue = ORDERS) -> None:
    administrator = Administrator(process_pool(), SystemClock(), PATIENCE_S)
    administrator.delete_topic(sim.broker_addresses[queue.broker_name], queue.topic)
    sim.create_topic(queue.topic, queues=1, brokers=[queue.broker_name])
    produce(sim, count)


@pytest.fixture
def run(sim: SimCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """One run of a replay into a topic, whose tasks run here, without Spark."""
    for check in ("check_session", "check_classic", "check_speculation", "check_shared"):
        monkeypatch.setattr(replay, check, lambda *_: None)

    def run_tasks(_: object, function: Any, count: int, __: object) -> Any:
        numbers = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(count)]
        rows = [row for batch in function(numbers) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: rows)

    monkeypatch.setattr(replay, "run_tasks", run_tasks)

    def run(record: str = "record", **options: str) -> ReplaySummary:
        given = {"nameServers": sim.name_servers, "topic": ORDERS.topic} | PATIENT | options
        spark: Any = None
        return Replay(spark, given, offsets_per_step=4).to_topic(COPIES.topic, str(tmp_path / record))

    return run


def test_a_later_run_of_the_same_topic_sends_what_came_since(sim: SimCluster, run: Run) -> None:
    """H3: the messages before are recognised."""
    produce(sim, 10)
    first = run()
    produce(sim, 3)
    more = run()

    assert (first.written, first.steps) == (10, 3)
    assert (more.planned, more.recorded, more.written) == (13, 10, 3)


@pytest.mark.parametrize("count", [5, 10, 25])
def test_a_topic_that_was_made_again_is_not_taken_for_replayed(sim: SimCluster, run: Run, count: int) -> None:
    """H3: whether it has fewer messages, as many or more; a new record sends them all."""
    produce(sim, 10)
    run()
    make_again(sim, count)

    with pytest.raises(DataLoss, match=r"orders.*The topic was created again.*replay with a new record"):
        run()
    assert sim.bounds(COPIES).max_offset == 10
    assert run("new").written == count


def test_a_target_that_was_made_again_is_not_taken_for_filled(sim: SimCluster, run: Run) -> None:
    """H3: the messages that the record calls stored are gone from it."""
    produce(sim, 10)
    run()
    make_again(sim, 5, COPIES)

    with pytest.raises(DataLoss, match=r"copies.*The topic was created again.*replay with a new record"):
        run()
    assert sim.bounds(COPIES).max_offset == 0
    assert run("new").written == 15


def test_a_record_gets_no_ranges_of_two_logs(sim: SimCluster, run: Run) -> None:
    """H3: else a later run would find the end of the new one, and take the old ranges for its."""
    produce(sim, 10)
    run()
    make_again(sim, 25)

    with pytest.raises(DataLoss, match="has another message there"):
        run(startingOffsets='{"orders": {"broker-a": {"0": 10}}}')


def test_messages_that_expired_are_no_other_log(sim: SimCluster, run: Run) -> None:
    """H3"""
    produce(sim, 10)
    run()
    later_ms = sim.call(lambda: sim.broker("broker-a").state.clock.now_s() * 1000 + 1)
    sim.call(lambda: sim.broker("broker-a").state.store.drop_stored_before(int(later_ms)))
    produce(sim, 3)

    assert (run().written, sim.bounds(ORDERS).min_offset) == (3, 10)


@pytest.mark.parametrize("sim", [False, True], indirect=True, ids=["in the route", "listed as master"])
def test_a_slave_does_not_decide_that_a_log_ended(sim: SimCluster, run: Run) -> None:
    """H3, L3: what it lacks was replayed all the same."""
    produce(sim, 6)
    run()
    sim.set_replica_lag("broker-a", 4)
    produce(sim, 4)
    run()
    sim.stop_broker("broker-a")

    with pytest.raises(TransportError, match="is a slave of broker-a, and lacks messages of topic=orders"):
        run()
    sim.set_replica_lag("broker-a", 0)
    assert (again := run()).recorded == again.planned == 10


def test_a_slave_that_becomes_master_without_the_end_is_another_log(sim: SimCluster, run: Run) -> None:
    """H3, L3: new messages get offsets that count as replayed."""
    sim.set_replica_lag("broker-a", 4)
    produce(sim, 10)
    run()
    sim.stop_broker("broker-a")
    sim.promote_replica("broker-a")

    with pytest.raises(DataLoss, match="offset 9 was wanted, but the broker has offsets below 6 only"):
        run()
    produce(sim, 20)
    with pytest.raises(DataLoss, match="offset 9 was wanted, but the broker has another message there"):
        run()


def test_a_message_that_cannot_be_looked_up_is_not_recorded(
    sim: SimCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: the replay goes on, and its record has only the range's end, as those of earlier releases."""
    produce(sim, 10)
    with monkeypatch.context() as patched:
        patched.setattr(replay, "found_at", Mock(side_effect=TransportError("a:1", "it is silent")))
        run()
    produce(sim, 1)
    assert run().written == 1

    make_again(sim, 5)
    with pytest.raises(DataLoss, match="replay with a new record"):
        run()


SALES, ELSEWHERE = MessageQueue("sales", "broker-b", 0), MessageQueue("copies", "broker-a", 0)
SALES_AT_A = MessageQueue("sales", "broker-a", 0)


@pytest.fixture
def sales(sim: SimCluster, run: Run) -> Callable[..., ReplaySummary]:
    """A run that reads a queue of broker-b; the target has its namesake there, and a queue of broker-a."""
    sim.create_topic(ELSEWHERE.topic, queues=1, brokers=[ELSEWHERE.broker_name])
    sim.create_topic(SALES.topic, queues=1, brokers=[SALES.broker_name])
    return lambda record="record", **options: run(record, **{"topic": SALES.topic} | options)


def sell(sim: SimCluster, count: int) -> None:
    sim.put(SALES, [message(SALES.topic, number) for number in range(count)])


def ends(sim: SimCluster) -> tuple[int, int]:
    """Return the ends of the namesake and of the other queue."""
    return sim.bounds(COPIES).max_offset, sim.bounds(ELSEWHERE).max_offset


@pytest.mark.parametrize("sim", [False, True], indirect=True, ids=["in the route", "listed as master"])
def test_a_queue_goes_on_where_it_was_while_the_targets_master_is_away(sim: SimCluster, sales: Run) -> None:
    """H3, G2, L3: the slave shows new messages of the source; elsewhere they would lose their order."""
    sell(sim, 6)
    sales()
    sell(sim, 4)
    sim.stop_broker("broker-b")

    with pytest.raises(TargetQueueAway, match="Start the broker's master") as raised:
        sales()
    assert raised.value.retryable
    assert sim.bounds(ELSEWHERE).max_offset == 0
    sim.start_broker("broker-b")
    assert sales().written == 4
    assert ends(sim) == (10, 0)


def test_a_queue_whose_target_is_gone_for_good_goes_elsewhere_with_a_new_record(
    sim: SimCluster, sales: Run
) -> None:
    """H3: the error says how, and nothing is sent twice."""
    sell(sim, 6)
    sales()
    sell(sim, 4)
    sim.create_topic(COPIES.topic, queues=0, brokers=[COPIES.broker_name])

    with pytest.raises(TargetQueueAway, match="replay with a new record") as raised:
        sales()
    assert sales("new", startingOffsets=raised.value.starting_offsets).written == 4
    sell(sim, 1)
    assert sales("new", startingOffsets=raised.value.starting_offsets).written == 1
    assert ends(sim) == (6, 5)


def test_a_new_record_leaves_out_what_the_run_left_out(sim: SimCluster, run: Run, sales: Run) -> None:
    """H3: the error names where the run began in a queue, and no queue that the run does not read."""
    sim.create_topic(SALES_AT_A.topic, queues=1, brokers=[SALES_AT_A.broker_name])
    sim.put(SALES_AT_A, [message(SALES.topic, number) for number in range(3)])
    left_out = '{"sales": {"broker-a": {"0": 3}}}'
    produce(sim, 2)
    sell(sim, 6)
    run()
    sales(startingOffsets=left_out)
    sell(sim, 4)
    sim.create_topic(COPIES.topic, queues=0, brokers=[COPIES.broker_name])

    with pytest.raises(TargetQueueAway) as raised:
        sales(startingOffsets=left_out)
    assert raised.value.starting_offsets == '{"sales": {"broker-a": {"0": 3}, "broker-b": {"0": 6}}}'
    assert sales("new", startingOffsets=raised.value.starting_offsets).written == 4


def test_a_new_record_goes_on_at_earliest_when_its_start_has_expired(sim: SimCluster, sales: Run) -> None:
    """H3: nothing is sent twice, since the new record has what was sent from there on."""
    sell(sim, 6)
    sales("new", startingOffsets='{"sales": {"broker-b": {"0": 2}}}')
    state = sim.broker("broker-b").state
    sim.call(lambda: state.store.drop_stored_before(int(state.clock.now_s() * 1000 + 1)))
    sell(sim, 3)

    with pytest.raises(OptionError, match=r"asks for offset 2 .* -2 \(earliest\)"):
        sales("new", startingOffsets='{"sales": {"broker-b": {"0": 2}}}')
    assert sales("new", startingOffsets='{"sales": {"broker-b": {"0": -2}}}').written == 3


def test_targets_that_can_be_read_are_finished_before_one_counts_as_away(
    sim: SimCluster, sales: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: else a new record would send their part of the step again."""
    sim.create_topic(SALES_AT_A.topic, queues=1, brokers=[SALES_AT_A.broker_name])
    sim.put(SALES_AT_A, [message(SALES.topic, number) for number in range(3)])
    sell(sim, 4)
    with monkeypatch.context() as patched:
        patched.setattr(ReplayRecord, "finish", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sales()
    sim.stop_broker("broker-b")
    pause = Mock()
    monkeypatch.setattr(f"{replay.__name__}.time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))

    with monkeypatch.context() as patched:
        patched.setattr(replay, "read_tail", Mock(side_effect=TransportError("a:1", "it is silent")))
        with pytest.raises(TransportError, match="it is silent"):
            sales()
    pause.assert_called_once()
    with pytest.raises(TargetQueueAway) as raised:
        sales()
    assert raised.value.starting_offsets == '{"sales": {"broker-a": {"0": 1}, "broker-b": {"0": 0}}}'
    sim.start_broker("broker-b")
    assert (sales().written, ends(sim)) == (4, (4, 3))


def test_an_unfinished_step_at_a_broker_that_is_away_is_not_sent_elsewhere(
    sim: SimCluster, sales: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: what it has stored cannot be looked up, and the error says how to go on."""
    sell(sim, 3)
    sales()
    sell(sim, 4)
    with monkeypatch.context() as patched:
        patched.setattr(ReplayRecord, "finish", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sales()
    sim.stop_broker("broker-b")
    pause = Mock()
    monkeypatch.setattr(f"{replay.__name__}.time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))

    with pytest.raises(TargetQueueAway, match="Start the broker's master") as raised:
        sales()
    assert raised.value.starting_offsets == '{"sales": {"broker-b": {"0": 3}}}'
    assert sim.bounds(ELSEWHERE).max_offset == 0
    assert not pause.called, "it waited although it could not look"
    sim.start_broker("broker-b")
    assert (sales().written, ends(sim)) == (0, (7, 0))


def test_a_first_run_without_the_namesake_warns_and_later_runs_stay_where_it_went(
    sim: SimCluster, sales: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """H3, G2: nothing is out of order yet."""
    sell(sim, 6)
    sim.stop_broker("broker-b")

    with caplog.at_level(logging.WARNING, replay.logger.name):
        sales()
    assert "cannot be written to now" in caplog.text
    caplog.clear()
    sim.start_broker("broker-b")
    sell(sim, 4)
    sales()
    assert "cannot be written to now" not in caplog.text
    assert ends(sim) == (0, 10)
