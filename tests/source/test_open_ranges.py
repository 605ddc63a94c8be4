"""Ranges without an end as they are handed to tasks."""

from __future__ import annotations

import pickle
from dataclasses import replace

from pyspark_rocketmq.consume.read_range import PullThresholds, ReadSettings
from pyspark_rocketmq.model import OPEN_END, MessageQueue, QueueBounds, QueueRange, QueueState
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.source.range_arrivals import RangeArrivals
from pyspark_rocketmq.source.ranges import QueuePartition, SharedTask, open_tasks_of, ticket_rows
from tests.helpers.partitions import partition_of


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", queue_id)


def open_range(queue_id: int, start: int = 0) -> QueuePartition:
    return partition_of(QueueRange(queue(queue_id), QueueState(start, 1), OPEN_END), "broker-a:10911")


def shares(tasks: list[SharedTask]) -> list[list[int]]:
    return [[each.planned.queue.queue_id for each in task.tickets[0].partitions] for task in tasks]


def test_the_longest_backlogs_have_tasks_of_their_own() -> None:
    """D1, D3: as many tasks as can run, since none of them ends."""
    bounds = {queue(number): QueueBounds(0, end) for number, end in enumerate((100, 900, 100, 800))}

    tasks = open_tasks_of([open_range(number) for number in range(4)], bounds, slots=2, open_for_s=300.0)

    assert shares(tasks) == [[0, 1], [2, 3]]


def test_a_queue_of_which_no_bounds_are_known_has_a_task_too() -> None:
    bounds = {queue(1): QueueBounds(0, 7)}

    assert shares(open_tasks_of([open_range(0), open_range(1)], bounds, slots=2, open_for_s=1.0)) == [
        [1],
        [0],
    ]


def test_a_ticket_names_its_queues_that_had_no_message_when_they_were_planned() -> None:
    """D1: if its machine is taken away, no message was the cause; without bounds this is not known."""
    bounds = {queue(number): QueueBounds(0, end) for number, end in enumerate((7, 8, 7))}
    ranges = [open_range(number, 7) for number in range(4)]

    tasks = open_tasks_of(ranges, bounds, slots=2, open_for_s=1.0)

    at_end = {queue(0), queue(2)}
    assert {each for task in tasks for each in task.tickets[0].at_end} == at_end
    for (ticket,) in (task.tickets for task in tasks):
        assert ticket.at_end == at_end & {each.planned.queue for each in ticket.partitions}


def test_the_query_s_thresholds_are_each_queue_s_however_many_a_task_has() -> None:
    """D13"""
    options = {
        "nameServers": "127.0.0.1:9876",
        "topic": "orders",
        "consumerGroup": "billing",
        "offsetStore": "/x",
        "pullThresholdForQueue": "7",
        "pullThresholdSizeForQueue": "9",
    }
    settings = ReadSettings.of(ReadOptions.parse(options))
    some = [replace(open_range(number), settings=settings) for number in range(3)]

    assert RangeArrivals(some).thresholds == PullThresholds(7, 9 << 20)
    assert RangeArrivals([open_range(0)]).thresholds == PullThresholds()


def test_a_task_of_open_ranges_has_one_ticket_of_one_row() -> None:
    """Spark counts a row for each task: how many messages will come is not known."""
    (task,) = open_tasks_of([open_range(0), open_range(1, 5)], {}, slots=1, open_for_s=300.0)

    (ticket,) = task.tickets
    assert (ticket.tasks, ticket.open_for_s) == (1, 300.0)
    assert [each.planned.start for each in ticket.partitions] == [0, 5]
    (row,) = ticket_rows(ticket).column(0).to_pylist()
    assert pickle.loads(row) == ticket
