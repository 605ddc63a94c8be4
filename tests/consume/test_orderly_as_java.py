"""The orderly machine, run after run, against Java: recorded traces and a model of ``ProcessQueue``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.orderly import Delivery, Finish, OrderlyConsumption, OrderlySettings
from pyspark_rocketmq.model import ConsumeOrderlyStatus

SUCCESS = ConsumeOrderlyStatus.SUCCESS
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
RAISES = object()
"""Stands for a listener that raises."""

START_S = 100.0
GOLDEN = Path(__file__).parents[1] / "golden" / "orderly_trace.json"


def answer(
    machine: OrderlyConsumption, status: object, *, auto_commit: bool, now_s: float, suspend_millis: int = -1
) -> None:
    if status is RAISES:
        machine.listener_raised(now_s, auto_commit=auto_commit, suspend_millis=suspend_millis)
    else:
        machine.listener_returned(status, auto_commit=auto_commit, suspend_millis=suspend_millis, now_s=now_s)


SCENARIOS = json.loads(GOLDEN.read_text(encoding="utf-8"))["scenarios"]
CONTEXT_SUSPENDS = {"context suspend time per call": [100, 2000, 1, -1, -1]}
ANSWERS = {"throws": RAISES, "null": None}


@dataclass
class ReplayedQueue:
    """A queue as planner and store see it: where the next run begins and with what it begins."""

    settings: OrderlySettings
    length: int
    next_index: int = 0
    accumulated: int = 0
    reconsume_times: int = 0
    due_s: float = 0.0
    run: OrderlyConsumption | None = None

    def delivery(self, now_s: float) -> Delivery:
        """The next delivery in absolute indexes; begins a new run if the last one ended."""
        if self.run is None:
            self.run = OrderlyConsumption(
                count=self.length - self.next_index,
                settings=self.settings,
                started_s=now_s,
                accumulated=self.accumulated,
                reconsume_times=self.reconsume_times,
            )
        relative = self.run.next_delivery(now_s)
        assert relative is not None
        return Delivery(
            relative.start + self.next_index, relative.stop + self.next_index, relative.reconsume_times
        )

    def committed(self) -> int:
        return self.next_index + (self.run.committed if self.run else 0)

    def end_run(self) -> None:
        assert self.run is not None
        assert self.run.finished is not None
        self.next_index += self.run.committed
        self.accumulated = self.run.accumulated
        self.reconsume_times = self.run.reconsume_times
        self.due_s = self.run.suspended_until_s or 0.0
        self.run = None


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s["scenario"])
def test_java_made_the_same_deliveries(scenario):
    """D1-D5: each recorded listener call is the machine's next delivery, up to the first dead letter (D6)."""
    config = scenario["config"]
    settings = OrderlySettings(
        consume_message_batch_max_size=config["consumeMessageBatchMaxSize"],
        suspend_current_queue_time_millis=config["suspendCurrentQueueTimeMillis"],
    )
    sent = [int(where.split("@")[1]) for where in config["sent (key@queue)"]]
    queues = [ReplayedQueue(settings, sent.count(i)) for i in range(config["queues"])]
    auto_commit = not scenario["scenario"].startswith("autoCommit=false")
    suspends = iter(CONTEXT_SUSPENDS.get(scenario["scenario"], []))
    for event in scenario["events"]:
        now_s = event["ms"] / 1000
        recorded = event["messages"]
        replayed = queues[recorded[0]["queueId"]]
        # The trace is rounded to 100 ms.
        assert now_s >= replayed.due_s - 0.051
        assert replayed.due_s == 0.0 or now_s <= replayed.due_s + 0.101
        assert replayed.delivery(now_s) == Delivery(
            recorded[0]["queueOffset"], recorded[-1]["queueOffset"] + 1, recorded[0]["reconsumeTimes"]
        )
        assert replayed.run is not None
        status = ANSWERS.get(event["result"], event["result"])
        answer(replayed.run, status, auto_commit=auto_commit, suspend_millis=next(suspends, -1), now_s=now_s)
        if replayed.run.finished is Finish.SUSPENDED:
            replayed.end_run()
            if 0 <= config["maxReconsumeTimes"] < replayed.reconsume_times:
                return
        else:
            replayed.due_s = 0.0

    assert [replayed.committed() for replayed in queues] == scenario["committed_after_shutdown"]


class JavaProcessQueue:
    """``ProcessQueue`` word for word: two maps of messages, a count for each message."""

    def __init__(self, length: int) -> None:
        self.waiting = dict.fromkeys(range(length), 0)
        self.consuming: dict[int, int] = {}
        self.committed = 0

    def take(self, most: int) -> list[int]:
        batch = sorted(self.waiting)[:most]
        for message in batch:
            self.consuming[message] = self.waiting.pop(message)
        return batch

    def apply(self, batch: list[int], status: object, *, auto_commit: bool) -> bool:
        """Whether the queue goes on at once."""
        if status in {SUCCESS, COMMIT, ROLLBACK} and auto_commit:
            return self.commit()
        if status is SUCCESS:
            return True
        if status is COMMIT:
            return self.commit()
        if status is ROLLBACK:
            self.waiting |= self.consuming
            self.consuming.clear()
            return False
        for message in batch:
            self.waiting[message] = self.consuming.pop(message) + 1
        return False

    def commit(self) -> bool:
        self.committed = max(self.consuming) + 1
        self.consuming.clear()
        return True


_ANSWERS = st.tuples(
    st.sampled_from([SUCCESS, SUCCESS, COMMIT, ROLLBACK, SUSPEND, None, RAISES, 7]), st.booleans()
)


@given(
    length=st.integers(0, 25),
    batch=st.integers(1, 6),
    answers=st.lists(_ANSWERS, max_size=60),
    slices=st.sets(st.integers(0, 60)),
)
def test_any_sequence_of_answers_delivers_and_commits_as_javas_process_queue(length, batch, answers, slices):
    """D1-D5, D7: whatever a run ends by, the next one continues as Java's consumer would have."""
    java = JavaProcessQueue(length)
    ours = ReplayedQueue(OrderlySettings(consume_message_batch_max_size=batch), length)
    counts_are_comparable = True
    for number, (status, auto_commit) in enumerate(answers):
        expected = java.take(batch)
        if not expected:
            break
        delivery = ours.delivery(START_S)
        assert list(range(delivery.start, delivery.stop)) == expected
        if counts_are_comparable:
            assert delivery.reconsume_times == java.consuming[expected[0]]
        assert ours.run is not None
        if status is ROLLBACK and ours.run.accumulated:
            # The one documented difference: Java remembers each message's count.
            counts_are_comparable = False
        answer(ours.run, status, auto_commit=auto_commit, now_s=START_S)
        goes_on = java.apply(expected, status, auto_commit=auto_commit)

        assert (ours.run.finished is None) == goes_on
        assert ours.committed() == java.committed
        assert ours.run.accumulated == len(java.consuming)
        has_yielded = goes_on and number in slices and ours.run.next_delivery(START_S + 61) is None
        if has_yielded or not goes_on:
            ours.end_run()

    assert ours.committed() == java.committed
