"""Random consumption against the few lines of Java that say where the offset is."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.consume.concurrent import (
    ACK_ALL,
    ConcurrentConsumption,
    ConcurrentDelivery,
    ConcurrentFinish,
    ConcurrentSettings,
    answer_of,
    answer_of_failure,
)
from pyspark_rocketmq.model import MessageModel

_EXAMPLES = int(os.environ.get("CONCURRENT_MODEL_EXAMPLES", "150"))


@dataclass
class ProcessQueue:
    """What Java keeps of a queue's messages (``ProcessQueue.msgTreeMap``)
    and what became of those it let go.
    """

    count: int
    tree: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    sent_back: set[int] = field(default_factory=set)

    def remove(self, index: int, where: set[int]) -> None:
        self.tree.discard(index)
        where.add(index)

    @property
    def offset(self) -> int:
        """``removeMessage``: the first key left, or the last one + 1."""
        return min(self.tree, default=self.count)


class Life:
    """One run over the messages at and after ``start``, with a listener and brokers that do anything."""

    def __init__(self, chance: random.Random, queue: ProcessQueue, start: int, first_failures: int) -> None:
        self.chance = chance
        self.queue = queue
        self.start = start
        queue.tree = set(range(start, queue.count))
        self.settings = ConcurrentSettings(
            consume_message_batch_max_size=chance.choice([1, 1, 2, 3, 40]),
            consume_thread_max=chance.choice([1, 2, 5]),
            consume_timeout_s=chance.choice([1.0, 10.0, 900.0]),
            max_time_consume_continuously_s=chance.choice([0.5, 60.0]),
            message_model=chance.choice([MessageModel.CLUSTERING] * 4 + [MessageModel.BROADCASTING]),
        )
        self.arrived = 0
        self.failures = {0: first_failures} if first_failures else {}
        is_whole = chance.random() < 0.3
        count = queue.count - start if is_whole else self.size_of_piece()
        self.machine = ConcurrentConsumption(
            count=count,
            settings=self.settings,
            started_s=0.0,
            failures=self.failures if count else {},
            is_whole=is_whole,
            least=chance.choice([1, self.settings.consume_message_batch_max_size]),
        )
        self.arrived = count
        self.now_s = 0.0
        self.out: dict[int, ConcurrentDelivery] = {}
        self.with_listener: dict[int, int] = {}
        self.going_back: set[int] = set()
        self.loss = chance.choice([0.0, 0.1, 0.9])

    def run(self) -> ConcurrentFinish:
        machine = self.machine
        while (finished := machine.finished) is None:
            before = machine.done
            if not machine.is_whole and (machine.is_dry or self.chance.random() < 0.1):
                self.arrive()
            self.step()
            assert machine.done >= before
            assert self.start + machine.done == self.queue.offset
            assert len(self.out) <= self.settings.consume_thread_max
        assert not self.with_listener
        assert not self.going_back
        assert machine.calls_lost == len(self.out)
        return finished

    def size_of_piece(self) -> int:
        return self.chance.randint(0, self.queue.count - self.start - self.arrived)

    def arrive(self) -> None:
        size, before = self.size_of_piece(), self.arrived
        self.arrived += size
        is_last = self.start + self.arrived == self.queue.count and self.chance.random() < 0.5
        failures = {} if before or not size else self.failures
        self.machine.extend(size, self.now_s, failures=failures, is_last=is_last)
        assert not (self.machine.is_dry and is_last)

    def step(self) -> None:
        action = self.chance.random()
        if action < 0.4:
            self.deliver()
        elif action < 0.65 and self.out:
            self.answer(self.chance.choice(list(self.out)))
        elif action < 0.9 and self.going_back:
            self.end_back(self.chance.choice(sorted(self.going_back)))
        elif action < 0.95:
            self.expire()
        else:
            self.now_s += self.chance.choice([0.1, 1.0, 5.0])

    def deliver(self) -> None:
        delivery = self.machine.next_delivery(self.now_s)
        if delivery is None:
            return
        indexes = list(delivery.indexes)
        assert 0 < len(indexes) <= self.settings.consume_message_batch_max_size
        assert indexes == sorted(set(indexes))
        assert indexes[-1] < self.arrived
        for index in indexes:
            assert self.start + index in self.queue.tree
            assert index not in self.with_listener
            assert index not in self.going_back
            self.with_listener[index] = delivery.number
        self.out[delivery.number] = delivery

    def answer(self, number: int) -> None:
        delivery = self.out.pop(number)
        indexes = list(delivery.indexes)
        here = [index for index in indexes if self.with_listener.get(index) == number]
        status = self.chance.choice(["CONSUME_SUCCESS"] * 3 + ["RECONSUME_LATER", None, "nonsense", "raise"])
        ack_index = self.chance.choice([ACK_ALL, ACK_ALL, self.chance.randrange(-1, len(indexes) + 1)])
        good = [i for i in indexes[: max(0, ack_index + 1)] if status == "CONSUME_SUCCESS" and i in here]
        answer = (
            answer_of_failure(delay_level=0)
            if status == "raise"
            else answer_of(status, ack_index=ack_index, delay_level=0, count=len(indexes))
        )
        settled = self.machine.answered(number, answer)
        bad = [index for index in here if index not in good]
        is_dropped = self.settings.message_model is MessageModel.BROADCASTING
        assert list(settled.done) == good
        assert list(settled.send_back) == ([] if is_dropped else bad)
        assert list(settled.dropped) == (bad if is_dropped else [])
        for index in here:
            del self.with_listener[index]
        for index in good:
            self.queue.remove(self.start + index, self.queue.acknowledged)
        for index in bad:
            if is_dropped:
                self.queue.remove(self.start + index, self.queue.sent_back)
            else:
                self.going_back.add(index)

    def end_back(self, index: int) -> None:
        self.going_back.discard(index)
        is_stored = self.chance.random() >= self.loss
        self.machine.sent_back(index, self.now_s, is_stored=is_stored)
        if is_stored:
            self.queue.remove(self.start + index, self.queue.sent_back)
        elif self.machine.failures.get(index) == 1:
            # A call that still runs has its message back, and nobody else is given it.
            running = [number for number, delivery in self.out.items() if index in delivery.indexes]
            self.with_listener.update((index, number) for number in running)

    def expire(self) -> None:
        expired = self.machine.expired(self.now_s)
        assert len(expired) <= 16
        for index in expired:
            del self.with_listener[index]
            self.going_back.add(index)


@settings(max_examples=_EXAMPLES)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_each_message_is_acknowledged_or_stored_before_the_offset_passes_it(
    seed: int,
) -> None:
    """E1-E7: over restarts, each of which begins at the offset the run before has reached."""
    chance = random.Random(seed)
    queue = ProcessQueue(chance.choice([0, 1, 5, 60]))
    offset = failures = 0
    for _ in range(500):
        life = Life(chance, queue, offset, failures)
        finished = life.run()
        offset += life.machine.done
        failures = life.machine.failures.get(life.machine.done, 0)
        assert (offset == queue.count) is (finished is ConcurrentFinish.EXHAUSTED)
        if offset == queue.count:
            break
    assert offset == queue.count
    assert queue.acknowledged | queue.sent_back == set(range(queue.count))
