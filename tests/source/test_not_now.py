"""A queue whose broker answers "not now", or nothing, waits; those of other brokers and topics do not."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from pyspark_rocketmq.consume.not_now import REFUSED_PAUSE_S
from pyspark_rocketmq.errors import (
    BrokerError,
    ConnectFailed,
    ConsumptionForbidden,
    ExpressionInvalid,
    GroupNotFound,
    NoPermission,
    RemoteProtocolError,
    RocketMQError,
    SystemBusy,
)
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.broker import BrokerOffsetStore
from pyspark_rocketmq.options.positions import LATEST
from tests.helpers.offsets_at_brokers import OffsetsAtBrokers
from tests.source.test_checkpoint_generations import Stream
from tests.source.test_planner import A0, B0, Planning
from tests.source.test_queue_claims import FakeBrokerOffsets, handed_over
from tests.source.test_queue_generations import Scenario

NOT_NOW = [
    ConnectFailed("broker-b:1", "refused"),
    SystemBusy(2, "busy"),
    BrokerError(1, "store getMessage return null"),
    BrokerError(29, "queueId[3] is illegal"),
    BrokerError(4711, "a code of a release to come"),
    GroupNotFound(26, "subscription group [g] does not exist"),
    ConsumptionForbidden(16, "subscription group no permission, g"),
    RemoteProtocolError("broker-b:1 sent bytes that are no frame"),
]
FINAL = [
    NoPermission(16, "no acl permission"),
    ExpressionInvalid(23, "parse the consumer's subscription failed"),
]


def kind(error: RocketMQError) -> str:
    return f"{type(error).__name__}-{getattr(error, 'code', 0)}"


not_now = pytest.mark.parametrize("error", NOT_NOW, ids=kind)
final = pytest.mark.parametrize("error", FINAL, ids=kind)


def claimed_again() -> Scenario:
    scenario = Scenario({A0: [1, 2], B0: [1, 2]})
    scenario.consume_all()
    scenario.restart()
    for queue in (A0, B0):
        scenario.log.stored[queue].append(3)
    return scenario


@not_now
def test_a_claim_waits_only_for_queues_whose_message_cannot_be_looked_at(error: RocketMQError) -> None:
    """A8, F4, D3: the look at a claim."""
    scenario = claimed_again()
    scenario.log.failures[B0] = error

    assert scenario.next() == [(A0, 2, 3)]
    scenario.consume(A0, 3)
    assert scenario.next() is None

    scenario.log.failures.clear()
    assert scenario.next() == [(B0, 2, 3)]


@not_now
def test_a_claim_waits_only_for_brokers_that_do_not_report_the_groups_offset(error: RocketMQError) -> None:
    """A8, F3, C3: Java takes the next queue, too (``updateProcessQueueTableInRebalance``)."""
    scenario = claimed_again()
    scenario.brokers.failures["broker-b"] = error

    assert scenario.next() == [(A0, 2, 3)]
    assert scenario.planning.store.read("g")[B0].next_offset == 2

    scenario.brokers.failures.clear()
    scenario.consume(A0, 3)
    scenario.planning.clock.advance(REFUSED_PAUSE_S)
    assert scenario.next() == [(B0, 2, 3)]


@not_now
def test_a_plan_waits_only_for_brokers_that_do_not_take_a_reset(error: RocketMQError) -> None:
    """A8, F5: a reset is written to its broker before anything is consumed from there."""
    brokers = FakeBrokerOffsets()
    planning = Planning({A0: (0, 4), B0: (0, 4)}, group=True, broker_offsets=brokers)
    planning.next()
    planning.commit(A0, 4)
    planning.commit(B0, 4)
    planning.store.reset("g", {A0: 1, B0: 2})
    brokers.failures["broker-b"] = error

    assert planning.next() == [(A0, 1, 4)]
    planning.commit(A0, 4)
    assert planning.next() is None
    assert brokers.offsets[A0] == 1

    brokers.failures.clear()
    planning.clock.advance(REFUSED_PAUSE_S)
    assert planning.next() == [(B0, 2, 4)]
    assert brokers.offsets[B0] == 2


@not_now
def test_a_plan_waits_only_for_brokers_that_are_not_shown_what_they_forgot(error: RocketMQError) -> None:
    """A8, F1: a broker that fell back in a crash is shown the newer offset at the next claim."""
    brokers = FakeBrokerOffsets({A0: 0, B0: 0})
    planning = Planning({A0: (0, 5), B0: (0, 5)}, group=True, broker_offsets=brokers)
    for offset in (2, 4):
        planning.next()
        for queue in (A0, B0):
            planning.commit(queue, offset, is_shown=True)
            planning.store.note_arrivals("g", {queue: offset})
    planning.next()
    planning.clock.advance(1.0)
    planning.view.down = dict.fromkeys(("broker-a", "broker-b"), ConnectFailed("a:1", "refused"))
    planning.next()
    planning.view.down = {}
    brokers.offsets |= {A0: 2, B0: 2}
    handed_over(planning, A0, B0)

    write = brokers.write

    def refuse_broker_b(next_offsets: dict[MessageQueue, int], addresses: dict[str, str]) -> None:
        if B0 in next_offsets:
            raise error
        write(next_offsets, addresses)  # type: ignore[arg-type]

    brokers.write = refuse_broker_b  # type: ignore[method-assign, assignment]
    assert planning.next() == [(A0, 4, 5)]
    brokers.write = write  # type: ignore[method-assign]
    planning.commit(A0, 5)
    planning.clock.advance(REFUSED_PAUSE_S)
    assert planning.next() == [(B0, 4, 5)]


@not_now
def test_a_new_topic_that_cannot_be_begun_yet_holds_up_no_other(error: RocketMQError) -> None:
    """A8, F2: positions by time, for one, are searched for at the brokers."""
    planning = Planning({A0: (0, 4)}, group=True, broker_offsets=FakeBrokerOffsets())
    planning.next()
    planning.commit(A0, 4)
    payments = MessageQueue("payments", "broker-b", 0)
    planning.view.bounds |= {A0: (0, 5), payments: (0, 3)}
    begin = planning.view.starting_positions

    def refuse(*_: object) -> dict[MessageQueue, int]:
        raise error

    planning.view.starting_positions = refuse  # type: ignore[method-assign, assignment]
    assert planning.next() == [(A0, 4, 5)]
    planning.view.starting_positions = begin  # type: ignore[method-assign]
    planning.commit(A0, 5)
    planning.clock.advance(REFUSED_PAUSE_S)
    assert planning.next() == [(payments, 0, 3)]


@not_now
def test_a_plain_stream_waits_only_for_queues_that_cannot_be_looked_at(error: RocketMQError) -> None:
    """A8, F4: at its start it looks at the newest message read of each queue."""
    stream = Stream({A0: [1, 2], B0: [1, 2]})
    stream.next()
    stream.restart()
    for queue in (A0, B0):
        stream.log.stored[queue].append(3)
    stream.log.failures[B0] = error

    assert stream.next() == [(A0, 2, 3)]
    assert stream.next() is None

    stream.log.failures.clear()
    assert stream.next() == [(B0, 2, 3)]


@not_now
@pytest.mark.parametrize("is_group", [True, False], ids=["group", "plain"])
def test_a_drain_does_not_end_before_a_queue_that_waits_is_read(is_group: bool, error: RocketMQError) -> None:
    """A8, H4."""
    log = claimed_again() if is_group else Stream({A0: [1, 2], B0: [1, 2]})
    planning = log.planning
    if isinstance(log, Stream):
        log.next()
        log.restart()
        for queue in (A0, B0):
            log.log.stored[queue].append(3)
    planning.view.bounds |= {A0: (0, 3), B0: (0, 3)}
    planning.planner.prepare_available_now()
    log.log.failures[B0] = error
    assert log.next() == [(A0, 2, 3)]
    if isinstance(log, Scenario):
        log.consume(A0, 3)

    planning.on_pause.append(log.log.failures.clear)
    assert log.next() == [(B0, 2, 3)]
    assert planning.pauses


@not_now
def test_a_drain_ends_with_the_reason_why_a_queue_waits_for_too_long(error: RocketMQError) -> None:
    """A8, H4: option retryTimeoutMs."""
    scenario = Scenario({A0: [1, 2], B0: [1, 2]}, retryTimeoutMs="5000")
    scenario.consume_all()
    scenario.restart()
    scenario.log.failures[B0] = error
    scenario.log.stored[B0].append(3)
    scenario.planning.view.bounds[B0] = (0, 3)
    scenario.planning.planner.prepare_available_now()

    with pytest.raises(type(error)) as raised:
        scenario.next()

    assert raised.value is error


@final
def test_a_refusal_that_the_user_must_act_on_ends_a_group_that_has_worked(error: RocketMQError) -> None:
    """A8: as at first contact."""
    scenario = claimed_again()
    scenario.log.failures[B0] = error

    with pytest.raises(type(error)):
        scenario.next()


@pytest.mark.parametrize(
    "error", [each for each in NOT_NOW if not each.retryable and not isinstance(each, NoPermission)], ids=kind
)
def test_a_new_group_that_is_refused_from_the_start_ends_after_a_few_tries(error: RocketMQError) -> None:
    """A8: at first contact an answer that nobody explains is an error."""
    scenario = Scenario({A0: [1, 2]}, start=LATEST)
    tries: list[float] = []
    scenario.planning.on_pause.append(lambda: tries.append(scenario.planning.clock.monotonic_s()))
    scenario.log.failure = error

    with pytest.raises(type(error)):
        scenario.next()

    assert len(tries) == 2
    scenario.log.failure = None
    assert scenario.next() is None


def test_reading_that_is_switched_off_is_waited_for_by_a_new_group() -> None:
    """L4: an operator may have switched it off before the query began."""
    scenario = Scenario({A0: [1, 2]}, start=LATEST)
    scenario.log.failure = ConsumptionForbidden(16, "the topic[orders] pulling message is forbidden")
    assert scenario.next() is None

    scenario.log.failure = None
    assert scenario.next() is None
    scenario.log.stored[A0].append(3)
    assert scenario.next() == [(A0, 2, 3)]


class EveryAnswerIsNew(dict[str, RocketMQError]):
    """Failures that are raised as new objects, as a client's are; counts them."""

    count = 0

    def __getitem__(self, key: str) -> RocketMQError:
        self.count += 1
        return copy(super().__getitem__(key))


@pytest.mark.parametrize("error", [each for each in NOT_NOW if isinstance(each, BrokerError)], ids=kind)
def test_a_claim_that_a_broker_refuses_rests(error: RocketMQError, caplog: pytest.LogCaptureFixture) -> None:
    """A8: a trigger may come every few milliseconds; the broker is asked again after 3 s."""
    scenario = claimed_again()
    refusals = scenario.brokers.failures = EveryAnswerIsNew({"broker-b": error})

    for _ in range(5):
        scenario.next()
        scenario.consume(A0, 3)
    assert refusals.count == 1
    scenario.planning.clock.advance(REFUSED_PAUSE_S)
    scenario.next()

    assert refusals.count == 2
    assert len([text for text in caplog.messages if "left out of this plan" in text]) == 2


def test_a_queue_that_waits_is_logged_once_for_each_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A8: a trigger may come every few milliseconds."""
    scenario = claimed_again()
    scenario.log.failures[B0] = BrokerError(1, "store getMessage return null")

    scenario.next()
    scenario.consume(A0, 3)
    scenario.next()
    scenario.next()

    assert len([text for text in caplog.messages if "left out of this plan" in text]) == 1


def test_a_drain_does_not_end_before_a_topic_that_waits_for_all_brokers_is_begun() -> None:
    """A8, F2, H4: another topic's broker is away, which the group has read to its end."""
    payments = MessageQueue("payments", "broker-a", 0)
    planning = Planning({B0: (0, 4)}, group=True, broker_offsets=FakeBrokerOffsets())
    planning.next()
    planning.commit(B0, 4)
    planning.view.bounds[payments] = (0, 3)
    planning.planner.prepare_available_now()
    planning.view.down = {"broker-b": ConnectFailed("broker-b:1", "refused")}

    planning.on_pause.append(planning.view.down.clear)
    assert planning.next() == [(payments, 0, 3)]


def test_a_group_whose_offsets_only_brokers_keep_has_worked_once_a_queue_has_gone_on() -> None:
    """A8: brokers remember no message, and its tasks would end at an answer that nobody explains."""
    store: Any = BrokerOffsetStore(OffsetsAtBrokers())
    planning = Planning({A0: (0, 4), B0: (0, 4)}, group=True, store=store)

    assert planning.next() == [(A0, 0, 4), (B0, 0, 4)]
    assert not planning.planner.has_worked
    planning.commit(B0, 2)
    planning.next()
    assert planning.planner.has_worked
