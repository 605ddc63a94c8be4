"""The orderly machine, run after run, against Java: recorded traces and a model of ``ProcessQueue``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.consume.orderly import (
    Effect,
    NoStatus,
    OrderlyConsumption,
    OrderlyDelivery,
    OrderlyFinish,
    OrderlySettings,
    Outcome,
)
from pyspark_rocketmq.model import ConsumeOrderlyStatus

SUCCESS = ConsumeOrderlyStatus.SUCCESS
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
RAISES = NoStatus.RAISED
"""Stands for a listener that raises."""

START_S = 100.0
GOLDEN = Path(__file__).parents[1] / "golden" / "orderly_trace.json"


def answer(
    machine: OrderlyConsumption, status: object, *, auto_commit: bool, now_s: float, suspend_millis: int = -1
) -> Outcome:
    return machine.answered(status, auto_commit=auto_commit, suspend_millis=suspend_millis, now_s=now_s)


SCENARIOS = json.loads(GOLDEN.read_text(encoding="utf-8"))["scenarios"]
CONTEXT_SUSPENDS = {"context suspend time per call": [100, 2000, 1, -1, -1]}
ANSWERS = {"throws": RAISES, "null": None}


@dataclass
class ReplayedQueue:
    """A queue as planner, state and dead-letter topic see it:
    where the next run begins and with what it begins.
    """

    settings: OrderlySettings
    length: int
    next_index: int = 0
    retry_counts: dict[int, int] = field(default_factory=dict)
    """By absolute index."""
    due_s: float = 0.0
    dead_letters: list[int] = field(default_factory=list)
    run: OrderlyConsumption | None = None

    def delivery(self, now_s: float) -> OrderlyDelivery:
        """The next delivery in absolute indexes; begins a new run if the last one ended."""
        if self.run is None:
            self.run = OrderlyConsumption(
                count=self.length - self.next_index,
                settings=self.settings,
                started_s=now_s,
                retry_counts={index - self.next_index: times for index, times in self.retry_counts.items()},
            )
        relative = self.run.next_delivery(now_s)
        assert relative is not None
        return relative._replace(start=relative.start + self.next_index, stop=relative.stop + self.next_index)

    def answer(self, status: object, *, stores: Callable[[int], bool] = lambda _: True, **how: Any) -> None:
        """Answer the delivery in hand; dead letters that ``stores`` a broker are sent."""
        assert self.run is not None
        outcome = answer(self.run, status, **how)
        if outcome.effect is Effect.SEND_BACK:
            sent = [index for index in outcome.dead_letters if stores(index + self.next_index)]
            self.dead_letters += [index + self.next_index for index in sent]
            self.run.sent_back(sent, how["now_s"])

    def committed(self) -> int:
        return self.next_index + (self.run.committed if self.run else 0)

    def end_run(self) -> None:
        assert self.run is not None
        assert self.run.finished is not None
        self.retry_counts = {index + self.next_index: times for index, times in self.run.retry_counts.items()}
        self.next_index += self.run.committed
        self.due_s = self.run.goes_on_at_s or 0.0
        self.run = None


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s["scenario"])
def test_java_made_the_same_deliveries_and_dead_letters(scenario: dict[str, Any]) -> None:
    """D1-D6: each recorded listener call is the machine's next delivery, its dead letters are Java's."""
    config = scenario["config"]
    settings = OrderlySettings(
        consume_message_batch_max_size=config["consumeMessageBatchMaxSize"],
        suspend_current_queue_time_millis=config["suspendCurrentQueueTimeMillis"],
        max_reconsume_times=config["maxReconsumeTimes"],
    )
    sent = [where.split("@") for where in config["sent (key@queue)"]]
    keys = [[key for key, queue in sent if int(queue) == i] for i in range(config["queues"])]
    queues = [ReplayedQueue(settings, len(of_queue)) for of_queue in keys]
    auto_commit = not scenario["scenario"].startswith("autoCommit=false")
    suspends = iter(CONTEXT_SUSPENDS.get(scenario["scenario"], []))
    for event in scenario["events"]:
        now_s = event["ms"] / 1000
        recorded = event["messages"]
        replayed = queues[recorded[0]["queueId"]]
        # The trace is rounded to 100 ms.
        assert now_s >= replayed.due_s - 0.051
        assert replayed.due_s == 0.0 or now_s <= replayed.due_s + 0.101
        times = tuple(message["reconsumeTimes"] for message in recorded)
        assert replayed.delivery(now_s) == OrderlyDelivery(
            recorded[0]["queueOffset"], recorded[-1]["queueOffset"] + 1, times if any(times) else ()
        )
        assert replayed.run is not None
        status = ANSWERS.get(event["result"], event["result"])
        replayed.answer(status, auto_commit=auto_commit, suspend_millis=next(suspends, -1), now_s=now_s)
        if replayed.run.finished is OrderlyFinish.SUSPENDED:
            replayed.end_run()
        else:
            replayed.due_s = 0.0

    assert [replayed.committed() for replayed in queues] == scenario["committed_after_shutdown"]
    dead_letters = [keys[i][at] for i, replayed in enumerate(queues) for at in replayed.dead_letters]
    recorded_dead = [letter for letter in scenario["dlq_content"] if isinstance(letter, dict)]
    assert dead_letters == [letter["key"] for letter in recorded_dead]
    assert all(letter["reconsumeTimes"] == settings.max_reconsume_times + 1 for letter in recorded_dead)


class JavaProcessQueue:
    """``ProcessQueue`` and ``processConsumeResult`` word for word: two maps of messages,
    a count for each message.
    """

    def __init__(self, length: int, max_reconsume_times: int) -> None:
        self.waiting = dict.fromkeys(range(length), 0)
        self.consuming: dict[int, int] = {}
        self.committed = 0
        self.most = max_reconsume_times if max_reconsume_times >= 0 else 2**31 - 1
        self.dead_letters: list[int] = []

    def take(self, most: int) -> list[int]:
        batch = sorted(self.waiting)[:most]
        for message in batch:
            self.consuming[message] = self.waiting.pop(message)
        return batch

    def apply(
        self, batch: list[int], status: object, stores: Callable[[int], bool], *, auto_commit: bool
    ) -> bool:
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
        if not self.check_reconsume_times(batch, stores):
            return self.commit() if auto_commit else True
        for message in batch:
            self.waiting[message] = self.consuming.pop(message)
        return False

    def check_reconsume_times(self, batch: list[int], stores: Callable[[int], bool]) -> bool:
        suspend = False
        for message in batch:
            if self.consuming[message] >= self.most and stores(message):
                self.dead_letters.append(message)
            else:
                suspend = True
                self.consuming[message] += 1
        return suspend

    def restart(self) -> None:
        """Whoever goes on begins at the committed offset; unlike in Java, counts are kept."""
        self.waiting |= self.consuming
        self.consuming.clear()

    def commit(self) -> bool:
        self.committed = max(self.consuming) + 1
        self.consuming.clear()
        return True


_ANSWERS = st.tuples(
    st.sampled_from([SUCCESS, SUCCESS, COMMIT, ROLLBACK, SUSPEND, SUSPEND, None, RAISES, 7]),
    st.booleans(),
    st.integers(1, 6),
    st.integers(0, 2**25),
)
"""What the listener answers, autoCommit, messages there are for the batch,
and which dead letters a broker stores.
"""


@given(
    length=st.integers(0, 25),
    most=st.integers(-1, 3),
    answers=st.lists(_ANSWERS, max_size=60),
    slices=st.sets(st.integers(0, 60)),
)
def test_any_sequence_of_answers_delivers_and_commits_as_javas_process_queue(
    length: int, most: int, answers: list[Any], slices: set[int]
) -> None:
    """D1-D7: whatever a run ends by, the next one begins as a Java consumer does that is started again,
    but with each
    message's count."""
    java = JavaProcessQueue(length, most)
    ours = ReplayedQueue(OrderlySettings(consume_message_batch_max_size=6, max_reconsume_times=most), length)
    for number, (status, auto_commit, batch, stored) in enumerate(answers):
        if ours.run is None:
            # As if only so many messages had arrived: the next batch may have more of them, or fewer.
            ours.settings = replace(ours.settings, consume_message_batch_max_size=batch)
        expected = java.take(ours.settings.consume_message_batch_max_size)
        if not expected:
            break
        delivery = ours.delivery(START_S)
        assert list(range(delivery.start, delivery.stop)) == expected
        assert list(delivery.retry_counts or [0] * len(expected)) == [java.consuming[at] for at in expected]

        def stores(message: int, mask: int = stored) -> bool:
            return not mask >> message & 1

        ours.answer(status, stores=stores, auto_commit=auto_commit, now_s=START_S)
        goes_on = java.apply(expected, status, stores, auto_commit=auto_commit)

        assert ours.run is not None
        assert (ours.run.finished is None) == goes_on
        assert ours.committed() == java.committed
        assert ours.run.accumulated == len(java.consuming)
        assert ours.dead_letters == java.dead_letters
        may_yield = goes_on and number in slices and not ours.run.accumulated
        has_yielded = may_yield and ours.run.next_delivery(START_S + 61) is None
        if has_yielded or not goes_on:
            ours.end_run()
            java.restart()

    assert ours.committed() == java.committed
