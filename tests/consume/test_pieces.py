"""Ranges that arrive piece by piece, against the same ranges that arrive whole."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.consume.concurrent import (
    ACK_ALL,
    ConcurrentConsumption,
    ConcurrentFinish,
    ConcurrentSettings,
    answer_of,
)
from pyspark_rocketmq.consume.orderly import (
    Effect,
    NoStatus,
    OrderlyConsumption,
    OrderlyDelivery,
    OrderlyFinish,
    OrderlySettings,
    Outcome,
)
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
EXAMPLES = int(os.environ.get("PIECES_EXAMPLES", "300"))
SEEDS = st.integers(0, 2**32)


@dataclass(frozen=True)
class Call:
    """How one listener call ends, whatever it was given."""

    answer: object
    auto_commit: bool
    lasts_s: float
    is_stored: bool
    """Whether its dead letters are stored."""


@dataclass(frozen=True)
class Script:
    """A range and a listener."""

    count: int
    batch: int
    most: int
    retry_counts: dict[int, int]
    calls: Sequence[Call]
    given_up_at: int | None
    """Number of the call before which the queue is given up."""

    def machine(self, **arrives: Any) -> OrderlyConsumption:
        return OrderlyConsumption(
            settings=OrderlySettings(
                consume_message_batch_max_size=self.batch, max_reconsume_times=self.most
            ),
            started_s=0.0,
            stored_times=lambda index: index % 2,
            **arrives,
        )


ANSWERS = [SUCCESS] * 8 + [*ConsumeOrderlyStatus, SUSPEND, NoStatus.RAISED, None, "no status"]


def script_of(draw: random.Random, *, lasts_s: Sequence[float] = (0.0, 0.25), batch: int = 0) -> Script:
    count = draw.randint(0, 25)
    return Script(
        count,
        batch or draw.randint(1, 6),
        draw.choice([-1, 0, 1, 3]),
        {index: draw.randint(1, 3) for index in range(count) if draw.random() < 0.1},
        [
            Call(draw.choice(ANSWERS), draw.random() < 0.5, draw.choice(lasts_s), draw.random() < 0.5)
            for _ in range(60)
        ],
        draw.choice([None, None, draw.randint(0, 30)]),
    )


class Pieces:
    """A cutting of a range, and when its pieces arrive."""

    def __init__(self, count: int, draw: random.Random, *, is_never_dry: bool = False) -> None:
        self.arrived = 0
        self._left = count
        self._is_last_sent = False
        self._is_never_dry = is_never_dry
        self._draw = draw

    def size(self) -> int:
        """Return the length of the next piece."""
        size = self._draw.randint(0, self._left)
        self._left -= size
        self.arrived += size
        return size

    def arrive(self, script: Script, machine: OrderlyConsumption, now_s: float) -> None:
        """Have any number of pieces arrive, and enough for a delivery if the run is never to be dry."""
        while not self._is_last_sent and (
            (self._is_never_dry and machine.is_dry) or self._draw.random() < 0.3
        ):
            begin, size = self.arrived, self.size()
            self._is_last_sent = not self._left and self._draw.random() < 0.5
            times = between(script, begin, begin + size)
            machine.extend(size, now_s, retry_counts=times, is_last=self._is_last_sent)


def between(script: Script, begin: int, end: int) -> dict[int, int]:
    return {index: times for index, times in script.retry_counts.items() if begin <= index < end}


SUCCEEDS = Call(SUCCESS, True, 0.0, True)


class Run:
    """A machine as its driver runs it, suspensions included, and what came of it."""

    def __init__(self, script: Script, machine: OrderlyConsumption, pieces: Pieces | None = None) -> None:
        self.script, self.machine, self.pieces = script, machine, pieces
        self.now_s = 0.0
        self.deliveries: list[OrderlyDelivery] = []
        self.outcomes: list[Outcome] = []
        self.passed: list[tuple[int, int]] = []
        """Spans of messages committed together."""
        self.dry = 0
        while machine.finished is None or machine.finished is OrderlyFinish.SUSPENDED:
            self._step()

    def end(self) -> tuple[Any, ...]:
        machine = self.machine
        arrived = self.script.count if self.pieces is None else self.pieces.arrived
        # Messages that have not arrived keep their counts.
        left = between(self.script, arrived, self.script.count)
        return (
            machine.finished,
            machine.committed,
            machine.accumulated,
            {**machine.retry_counts, **left},
            machine.goes_on_at_s,
        )

    def _step(self) -> None:
        machine = self.machine
        self._arrive()
        if machine.goes_on_at_s is not None:
            self.now_s = machine.goes_on_at_s
            machine.go_on(self.now_s)
        if self.script.given_up_at == len(self.deliveries):
            machine.give_up()
        if (delivery := machine.next_delivery(self.now_s)) is not None:
            self._deliver(delivery)
        elif machine.finished is None:
            assert machine.is_dry
            self.dry += 1

    def _arrive(self) -> None:
        if self.pieces is not None:
            self.pieces.arrive(self.script, self.machine, self.now_s)

    def _deliver(self, delivery: OrderlyDelivery) -> None:
        number, calls = len(self.deliveries), self.script.calls
        call = calls[number] if number < len(calls) else SUCCEEDS
        self.deliveries.append(delivery)
        # Also while the listener has messages.
        self._arrive()
        self.now_s += call.lasts_s
        before = self.machine.committed
        outcome = self.machine.answered(
            call.answer, auto_commit=call.auto_commit, suspend_millis=250, now_s=self.now_s
        )
        self.outcomes.append(outcome)
        if outcome.effect is Effect.SEND_BACK:
            stored = outcome.dead_letters if call.is_stored else outcome.dead_letters[1:]
            self.outcomes.append(self.machine.sent_back(stored, self.now_s))
        if self.machine.committed > before:
            self.passed.append((before, self.machine.committed))


def whole_run(script: Script) -> Run:
    return Run(script, script.machine(count=script.count, retry_counts=script.retry_counts))


def cut_run(script: Script, draw: random.Random, *, is_never_dry: bool = False, **arrives: Any) -> Run:
    pieces = Pieces(script.count, draw, is_never_dry=is_never_dry)
    first = pieces.size()
    machine = script.machine(count=first, retry_counts=between(script, 0, first), is_whole=False, **arrives)
    return Run(script, machine, pieces)


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS)
def test_a_closed_range_gives_the_same_however_it_is_cut(seed: int) -> None:
    """D1-D6: the same calls, outcomes and end; a call waits until it is as long as it would be."""
    draw = random.Random(seed)
    script = script_of(draw)
    whole, cut = whole_run(script), cut_run(script, draw, least=script.batch)

    assert (cut.deliveries, cut.outcomes, cut.passed) == (whole.deliveries, whole.outcomes, whole.passed)
    assert cut.end() == whole.end()


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS)
def test_a_range_that_is_never_dry_yields_when_a_whole_one_does(seed: int) -> None:
    """D7"""
    draw = random.Random(seed)
    script = script_of(draw, lasts_s=(0.25, 31.0, 61.0))
    whole, cut = whole_run(script), cut_run(script, draw, is_never_dry=True, least=script.batch)

    assert cut.dry == 0
    assert (cut.deliveries, cut.outcomes) == (whole.deliveries, whole.outcomes)
    assert cut.end() == whole.end()


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS)
def test_an_open_range_gives_the_same_where_a_delivery_is_one_message(seed: int) -> None:
    """D1-D6"""
    draw = random.Random(seed)
    script = script_of(draw, batch=1)
    whole, cut = whole_run(script), cut_run(script, draw)

    assert (cut.deliveries, cut.outcomes) == (whole.deliveries, whole.outcomes)
    assert cut.end() == whole.end()


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS)
def test_an_open_range_passes_each_message_once_and_in_order(seed: int) -> None:
    """D1, D2: whatever the length of its calls."""
    draw = random.Random(seed)
    script = script_of(draw)
    cut = cut_run(script, draw)

    assert [begin for begin, _ in cut.passed] == [0, *(end for _, end in cut.passed)][: len(cut.passed)]
    assert cut.machine.committed == (cut.passed[-1][1] if cut.passed else 0)
    assert all(0 < stop - start <= script.batch for start, stop, _ in cut.deliveries)
    if cut.machine.finished is OrderlyFinish.EXHAUSTED:
        assert cut.machine.committed + cut.machine.accumulated == script.count


def dry_machine(**arrives: Any) -> OrderlyConsumption:
    machine = OrderlyConsumption(
        count=1, settings=OrderlySettings(), started_s=0.0, is_whole=False, **arrives
    )
    deliver(machine, 0.0)
    assert machine.next_delivery(50.0) is None
    return machine


def deliver(machine: OrderlyConsumption, now_s: float) -> None:
    assert machine.next_delivery(now_s) is not None
    machine.answered(SUCCESS, auto_commit=True, suspend_millis=-1, now_s=now_s)


def test_the_60_s_of_a_dry_run_begin_again_with_the_next_messages() -> None:
    """D7: as a new ConsumeRequest begins them."""
    machine = dry_machine()
    assert (machine.is_dry, machine.finished) == (True, None)
    machine.extend(3, 70.0)
    deliver(machine, 100.0)
    deliver(machine, 130.0)

    assert machine.next_delivery(130.1) is None
    assert (machine.finished, machine.committed) == (OrderlyFinish.SLICE_USED, 3)


def test_the_60_s_of_a_run_that_was_not_dry_go_on() -> None:
    """D7"""
    machine = OrderlyConsumption(count=2, settings=OrderlySettings(), started_s=0.0, is_whole=False)
    deliver(machine, 0.0)
    machine.extend(3, 50.0)
    deliver(machine, 60.0)

    assert machine.next_delivery(60.1) is None
    assert machine.finished is OrderlyFinish.SLICE_USED


def test_a_dry_run_ends_when_there_are_no_more_messages() -> None:
    machine = dry_machine()
    machine.extend(0, 51.0, is_last=True)

    assert not machine.is_dry
    assert machine.next_delivery(51.0) is None
    assert machine.finished is OrderlyFinish.EXHAUSTED


@pytest.mark.parametrize("give_up", [True, False])
def test_a_dry_run_may_be_given_up_or_stopped(give_up: bool) -> None:
    machine = dry_machine()
    machine.give_up() if give_up else machine.stop()

    assert not machine.is_dry
    machine.extend(2, 60.0, is_last=True)
    assert machine.next_delivery(60.0) is None
    assert machine.finished is (OrderlyFinish.GIVEN_UP if give_up else OrderlyFinish.SLICE_USED)


def test_messages_arrive_while_others_are_with_the_listener() -> None:
    """D1, D3: indexes stay, and what is put back comes with what has arrived."""
    machine = OrderlyConsumption(
        count=1,
        settings=OrderlySettings(consume_message_batch_max_size=3),
        started_s=0.0,
        is_whole=False,
    )
    assert machine.next_delivery(0.0) == OrderlyDelivery(0, 1)
    machine.extend(3, 0.0, retry_counts={2: 4})
    machine.answered(SUSPEND, auto_commit=True, suspend_millis=-1, now_s=0.0)
    machine.go_on(1.0)

    assert machine.next_delivery(1.0) == OrderlyDelivery(0, 3, (1, 0, 4))


CONSUMED = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS)
def test_a_pool_gets_the_same_calls_however_a_closed_range_is_cut(seed: int) -> None:
    """E1, E2, E6"""
    draw = random.Random(seed)
    count, batch, threads = draw.randint(0, 30), draw.randint(1, 7), draw.randint(1, 4)
    left = count - (first := draw.randint(0, count))
    machine = ConcurrentConsumption(
        count=first,
        settings=ConcurrentSettings(consume_message_batch_max_size=batch, consume_thread_max=threads),
        started_s=0.0,
        is_whole=False,
        least=batch,
    )
    deliveries: list[Sequence[int]] = []
    out: list[tuple[int, int]] = []
    while machine.finished is None:
        if not machine.is_whole and draw.random() < 0.5:
            left -= (size := draw.randint(0, left))
            machine.extend(size, 0.0, is_last=not left and draw.random() < 0.5)
        if (delivery := machine.next_delivery(0.0)) is not None:
            deliveries.append(delivery.indexes)
            out.append((delivery.number, len(delivery.indexes)))
        elif out:
            number, length = out.pop(draw.randrange(len(out)))
            machine.answered(number, answer_of(CONSUMED, ack_index=ACK_ALL, delay_level=0, count=length))
        else:
            assert machine.is_dry or machine.is_whole

    assert deliveries == [range(start, min(start + batch, count)) for start in range(0, count, batch)]
    assert (machine.finished, machine.done) == (ConcurrentFinish.EXHAUSTED, count)


def concurrent_machine(count: int) -> ConcurrentConsumption:
    return ConcurrentConsumption(count=count, settings=ConcurrentSettings(), started_s=0.0, is_whole=False)


def call(machine: ConcurrentConsumption, now_s: float) -> None:
    delivery = machine.next_delivery(now_s)
    assert delivery is not None
    machine.answered(delivery.number, answer_of(CONSUMED, ack_index=ACK_ALL, delay_level=0, count=1))


def test_the_60_s_of_a_dry_concurrent_run_begin_again_with_the_next_messages() -> None:
    machine = concurrent_machine(1)
    call(machine, 0.0)
    assert machine.next_delivery(70.0) is None
    assert (machine.is_dry, machine.finished) == (True, None)
    machine.extend(3, 70.0)
    call(machine, 100.0)
    call(machine, 130.0)

    assert machine.next_delivery(130.1) is None
    assert (machine.finished, machine.done) == (ConcurrentFinish.SLICE_USED, 3)


def test_a_dry_concurrent_run_is_given_up() -> None:
    """Although everything that has arrived is done: more may have been stored."""
    machine = concurrent_machine(1)
    call(machine, 0.0)
    machine.give_up()

    assert (machine.finished, machine.is_dry) == (ConcurrentFinish.GIVEN_UP, False)


def test_a_concurrent_run_waits_for_nothing_but_messages_when_it_is_dry() -> None:
    machine = concurrent_machine(2)
    first, second = machine.next_delivery(0.0), machine.next_delivery(0.0)
    assert first is not None
    assert second is not None
    assert not machine.is_dry
    machine.answered(second.number, answer_of(CONSUMED, ack_index=ACK_ALL, delay_level=0, count=1))
    machine.answered(first.number, answer_of("RECONSUME_LATER", ack_index=ACK_ALL, delay_level=0, count=1))
    assert not machine.is_dry
    machine.sent_back(0, 0.0, is_stored=True)

    assert (machine.done, machine.is_dry, machine.finished) == (2, True, None)


def test_the_first_message_is_tried_by_itself_although_it_arrives_late() -> None:
    """E4"""
    machine = concurrent_machine(0)
    machine.extend(3, 0.0, failures={0: 1})
    first = machine.next_delivery(0.0)

    assert first is not None
    assert (first.indexes, machine.next_delivery(0.0)) == (range(1), None)
    machine.answered(first.number, answer_of(CONSUMED, ack_index=ACK_ALL, delay_level=0, count=1))
    second = machine.next_delivery(0.0)
    assert second is not None
    assert second.indexes == range(1, 2)
