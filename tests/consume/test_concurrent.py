"""Concurrent consumption of one range: deliveries, answers, messages that go back,
and how far the offset comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

from pyspark_rocketmq.consume.concurrent import (
    ACK_ALL,
    Answer,
    ConcurrentConsumption,
    ConcurrentDelivery,
    ConcurrentFinish,
    ConcurrentSettings,
    answer_of,
    answer_of_failure,
)
from pyspark_rocketmq.model import ConsumeConcurrentlyStatus, MessageModel, ReturnType

LATER = Answer(ReturnType.FAILED, 0, 0)


def consumption(
    count: int,
    *,
    batch: int = 1,
    threads: int = 20,
    failures: Mapping[int, int] = MappingProxyType({}),
    **settings: object,
) -> ConcurrentConsumption:
    return ConcurrentConsumption(
        count=count,
        settings=ConcurrentSettings(
            consume_message_batch_max_size=batch,
            consume_thread_max=threads,
            **settings,  # type: ignore[arg-type]
        ),
        started_s=0.0,
        failures=failures,
    )


def deliveries(machine: ConcurrentConsumption, now_s: float = 0.0) -> list[list[int]]:
    """All that it gives out now."""
    found = iter(lambda: machine.next_delivery(now_s), None)
    return [list(delivery.indexes) for delivery in found]


def take(machine: ConcurrentConsumption, now_s: float = 0.0) -> ConcurrentDelivery:
    delivery = machine.next_delivery(now_s)
    assert delivery is not None
    return delivery


def test_a_range_is_cut_into_batches_up_to_the_number_of_threads() -> None:
    """E1, E9: the rest waits for a thread, none is dropped."""
    machine = consumption(8, batch=3, threads=2)

    assert deliveries(machine) == [[0, 1, 2], [3, 4, 5]]
    machine.answered(1, Answer(ReturnType.SUCCESS, 3, 0))
    assert deliveries(machine) == [[6, 7]]
    assert machine.finished is None


def test_a_range_without_messages_is_over_at_once() -> None:
    """E6: a filter may leave none."""
    machine = consumption(0)

    assert machine.next_delivery(0.0) is None
    assert (machine.finished, machine.done) == (ConcurrentFinish.EXHAUSTED, 0)


def test_the_offset_is_the_smallest_one_not_done() -> None:
    """E6: whatever the order of the answers."""
    machine = consumption(4)
    deliveries(machine)
    reached = []
    for number in (2, 1, 0, 3):
        machine.answered(number, Answer(ReturnType.SUCCESS, 1, 0))
        reached.append(machine.done)

    assert reached == [0, 0, 3, 4]
    assert machine.finished is ConcurrentFinish.EXHAUSTED


@pytest.mark.parametrize(
    ("ack_index", "acknowledged"), [(ACK_ALL, 3), (3, 3), (2, 3), (1, 2), (0, 1), (-1, 0), (-7, 0)]
)
def test_messages_after_the_ack_index_have_failed(ack_index: int, acknowledged: int) -> None:
    """E2."""
    answer = answer_of(ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ack_index=ack_index, delay_level=0, count=3)
    machine = consumption(3, batch=3)
    take(machine)

    settled = machine.answered(0, answer)

    assert answer == Answer(ReturnType.SUCCESS, acknowledged, 0)
    assert (list(settled.done), list(settled.send_back)) == (
        list(range(acknowledged)),
        list(range(acknowledged, 3)),
    )
    assert machine.done == acknowledged


@pytest.mark.parametrize(
    ("status", "return_type", "is_problem"),
    [
        ("CONSUME_SUCCESS", ReturnType.SUCCESS, False),
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, ReturnType.FAILED, False),
        (None, ReturnType.RETURNNULL, True),
        ("SUCCESS", ReturnType.FAILED, True),
        (True, ReturnType.FAILED, True),
        ([], ReturnType.FAILED, True),
        (pd.DataFrame({"name": ["a", "b"]}), ReturnType.FAILED, True),
        (np.array(["CONSUME_SUCCESS"]), ReturnType.FAILED, True),
        (pd.NA, ReturnType.FAILED, True),
    ],
    ids=repr,
)
def test_only_consume_success_acknowledges(status: object, return_type: ReturnType, is_problem: bool) -> None:
    """E2: anything else has every message come again, whatever ackIndex says."""
    answer = answer_of(status, ack_index=ACK_ALL, delay_level=0, count=2)

    assert answer.return_type is return_type
    assert answer.acknowledged == (2 if return_type is ReturnType.SUCCESS else 0)
    assert (answer.problem is not None) is is_problem


def test_numbers_of_numpy_are_numbers() -> None:
    """E2: otherwise messages that are done would come again."""
    answer = answer_of("CONSUME_SUCCESS", ack_index=np.int64(0), delay_level=np.int32(5), count=2)

    assert answer == Answer(ReturnType.SUCCESS, 1, 5)


def test_a_context_with_nonsense_is_reported_and_acknowledges_nothing() -> None:
    """E2: a mistake must not lose a message."""
    answer = answer_of("CONSUME_SUCCESS", ack_index="1", delay_level=2.5, count=2)

    assert (answer.acknowledged, answer.delay_level) == (0, 0)
    assert "context.ack_index to a str" in str(answer.problem)
    assert "delay_level_when_next_consume to a float" in str(answer_of_failure(delay_level=2.5).problem)


def test_failed_messages_are_done_once_they_are_sent_back() -> None:
    """E3: not before, and the delay level is the context's."""
    machine = consumption(2, batch=2)
    take(machine)
    answer = answer_of("RECONSUME_LATER", ack_index=ACK_ALL, delay_level=-1, count=2)

    assert (list(machine.answered(0, answer).send_back), answer.delay_level) == ([0, 1], -1)
    assert (machine.done, machine.finished) == (0, None)
    machine.sent_back(1, 0.0, is_stored=True)
    assert machine.done == 0
    machine.sent_back(0, 0.0, is_stored=True)
    assert (machine.done, machine.finished) == (2, ConcurrentFinish.EXHAUSTED)


def test_a_thread_is_not_free_before_its_messages_are_sent_back() -> None:
    """E9: as in Java, where the thread itself sends them."""
    machine = consumption(2, threads=1)
    machine.answered(take(machine).number, LATER)

    assert machine.next_delivery(0.0) is None
    machine.sent_back(0, 0.0, is_stored=True)
    assert list(take(machine).indexes) == [1]


def test_failed_messages_are_dropped_in_broadcasting() -> None:
    """E5: nobody but this consumer could be given them."""
    machine = consumption(2, batch=2, message_model=MessageModel.BROADCASTING)
    take(machine)

    settled = machine.answered(0, Answer(ReturnType.SUCCESS, 1, 0))

    assert (list(settled.done), list(settled.send_back), list(settled.dropped)) == ([0], [], [1])
    assert (machine.done, machine.finished) == (2, ConcurrentFinish.EXHAUSTED)


def test_a_message_that_could_not_be_sent_back_is_consumed_again_after_five_seconds() -> None:
    """E4: with its failures counted, while the others go on and the offset stays."""
    machine = consumption(3, threads=2)
    deliveries(machine)
    machine.answered(0, LATER)
    machine.sent_back(0, 1.0, is_stored=False)

    assert deliveries(machine, 5.9) == [[2]]
    machine.answered(1, Answer(ReturnType.SUCCESS, 1, 0))
    assert machine.next_delivery(5.9) is None
    assert machine.wake_s() == 6.0
    # While its queue must wait, only the time-out of a call counts; the run would wake without a pause.
    assert machine.wake_s(delivers=False) == 5.9 + 900
    assert (machine.done, machine.finished, machine.failures.get(0, 0)) == (0, None, 1)
    again = take(machine, 6.0)
    assert list(again.indexes) == [0]
    machine.answered(again.number, Answer(ReturnType.SUCCESS, 1, 0))
    assert (machine.done, machine.failures.get(0, 0)) == (2, 0)


def test_a_second_failure_to_send_back_ends_the_run_with_a_hole() -> None:
    """E4: a micro-batch must end; nothing new is delivered, what is out is waited for."""
    machine = consumption(4, threads=2)
    deliveries(machine)
    machine.answered(0, LATER)
    machine.sent_back(0, 0.0, is_stored=False)
    machine.answered(take(machine, 5.0).number, LATER)
    machine.sent_back(0, 5.0, is_stored=False)

    assert (machine.next_delivery(60.0), machine.finished) == (None, None)
    machine.answered(1, Answer(ReturnType.SUCCESS, 1, 0))
    assert (machine.finished, machine.done, machine.failures.get(0, 0)) == (ConcurrentFinish.SUSPENDED, 0, 2)


def test_a_range_that_begins_with_a_hole_delivers_it_by_itself_first() -> None:
    """E4: so that what was done above it is not delivered again and again."""
    machine = consumption(3, batch=2, failures={0: 2})
    probe = take(machine)

    assert (list(probe.indexes), machine.failures.get(0, 0)) == ([0], 2)
    assert machine.next_delivery(0.0) is None
    machine.answered(probe.number, LATER)
    assert machine.next_delivery(0.0) is None
    machine.sent_back(0, 0.0, is_stored=True)
    assert deliveries(machine) == [[1, 2]]


def test_a_hole_that_stays_ends_the_run_at_once() -> None:
    """E4."""
    machine = consumption(3, failures={0: 2})
    machine.answered(take(machine).number, LATER)
    machine.sent_back(0, 0.0, is_stored=False)

    assert (machine.finished, machine.done, machine.failures.get(0, 0)) == (ConcurrentFinish.SUSPENDED, 0, 3)


def test_a_range_on_trial_ends_with_the_first_failure_of_its_first_message() -> None:
    """E4: the store does not keep how often the message failed; it counts as never given back."""
    machine = consumption(3, batch=2, failures={0: 0})
    probe = take(machine)
    assert (list(probe.indexes), machine.failures_of(probe.indexes), machine.failures) == ([0], [0], {})
    assert machine.next_delivery(0.0) is None

    machine.answered(probe.number, LATER)
    machine.sent_back(0, 0.0, is_stored=False)
    assert (machine.finished, machine.done, machine.failures) == (ConcurrentFinish.SUSPENDED, 0, {0: 1})


def test_a_range_on_trial_goes_on_when_its_first_message_is_done() -> None:
    """E4: a later message is tried twice, as ever."""
    machine = consumption(3, batch=2, failures={0: 0})
    machine.answered(take(machine).number, Answer(ReturnType.SUCCESS, 1, 0))
    assert deliveries(machine) == [[1, 2]]
    machine.answered(1, LATER)
    for index in (1, 2):
        machine.sent_back(index, 0.0, is_stored=False)

    assert deliveries(machine, 5.0) == [[1, 2]]


def test_a_trial_that_takes_too_long_ends_the_run() -> None:
    """E4, E7: no other message waits 5 s for another send-back."""
    machine = consumption(3, failures={0: 0}, consume_timeout_s=10)
    take(machine)
    assert list(machine.expired(10.0)) == [0]
    machine.sent_back(0, 10.0, is_stored=False)

    assert (machine.finished, machine.calls_lost) == (ConcurrentFinish.SUSPENDED, 1)


def test_messages_of_a_call_that_takes_too_long_are_sent_back_without_it() -> None:
    """E7: sixteen in a round, the smallest first; the range ends although the call does not."""
    machine = consumption(20, batch=18, threads=2, consume_timeout_s=900)
    deliveries(machine)
    machine.answered(1, Answer(ReturnType.SUCCESS, 2, 0))

    assert machine.wake_s() == 900.0
    assert machine.expired(899.9) == ()
    assert list(machine.expired(900.0)) == list(range(16))
    assert machine.expired(901.0) == ()
    for index in range(16):
        machine.sent_back(index, 901.0, is_stored=True)
    assert list(machine.expired(901.0)) == [16, 17]
    for index in (16, 17):
        machine.sent_back(index, 902.0, is_stored=True)
    assert (machine.finished, machine.done, machine.calls_lost) == (ConcurrentFinish.EXHAUSTED, 20, 1)


def test_a_late_answer_counts_only_for_what_was_not_sent_back() -> None:
    """E7: "Message is not found in its process queue; skip send-back-procedure"."""
    machine = consumption(18, batch=18, consume_timeout_s=10)
    take(machine)
    for index in machine.expired(10.0):
        machine.sent_back(index, 10.0, is_stored=True)

    late = machine.answered(0, Answer(ReturnType.SUCCESS, 17, 0))

    assert (list(late.done), list(late.send_back)) == ([16], [17])
    machine.sent_back(17, 11.0, is_stored=True)
    assert (machine.finished, machine.calls_lost) == (ConcurrentFinish.EXHAUSTED, 0)


def test_an_expired_message_that_cannot_be_sent_back_holds_the_offset() -> None:
    """E7, E4: tried once more after 5 s, not consumed again while its call runs."""
    machine = consumption(1, consume_timeout_s=10)
    take(machine)
    assert list(machine.expired(10.0)) == [0]
    machine.sent_back(0, 10.0, is_stored=False)

    assert (machine.wake_s(), machine.expired(14.9), machine.next_delivery(14.9)) == (15.0, (), None)
    assert list(machine.expired(15.0)) == [0]
    machine.sent_back(0, 15.0, is_stored=False)
    assert (machine.finished, machine.done, machine.calls_lost) == (ConcurrentFinish.SUSPENDED, 0, 1)


def test_an_expired_message_whose_call_ends_meanwhile_is_consumed_again() -> None:
    """E7, E4."""
    machine = consumption(1, consume_timeout_s=10)
    take(machine)
    machine.expired(10.0)
    assert list(machine.answered(0, Answer(ReturnType.SUCCESS, 1, 0)).done) == []
    machine.sent_back(0, 11.0, is_stored=False)

    assert list(take(machine, 16.0).indexes) == [0]


def test_a_run_ends_when_every_thread_is_lost() -> None:
    """E7: the rest is planned again; another run has threads of its own."""
    machine = consumption(3, threads=1, consume_timeout_s=10)
    take(machine)
    machine.expired(10.0)
    machine.sent_back(0, 10.0, is_stored=True)

    assert machine.next_delivery(10.0) is None
    assert (machine.finished, machine.done) == (ConcurrentFinish.THREADS_LOST, 1)


def test_a_thread_that_comes_back_late_goes_on() -> None:
    """E7."""
    machine = consumption(2, threads=1, consume_timeout_s=10)
    take(machine)
    machine.expired(10.0)
    machine.answered(0, Answer(ReturnType.SUCCESS, 1, 0))
    machine.sent_back(0, 10.0, is_stored=True)

    assert list(take(machine, 10.0).indexes) == [1]


def test_after_its_time_a_run_delivers_nothing_new() -> None:
    """E6: what is out is waited for, so the offset is the first message never delivered."""
    machine = consumption(4, threads=2, max_time_consume_continuously_s=60)
    deliveries(machine)
    machine.answered(1, Answer(ReturnType.SUCCESS, 1, 0))

    assert (machine.next_delivery(61.0), machine.finished) == (None, None)
    machine.answered(0, Answer(ReturnType.SUCCESS, 1, 0))
    assert (machine.finished, machine.done) == (ConcurrentFinish.SLICE_USED, 2)


def test_a_run_that_is_given_up_delivers_nothing_new() -> None:
    """D7: what is out is waited for, so the offset is the first message never delivered."""
    machine = consumption(4, threads=2)
    deliveries(machine)
    machine.give_up()
    machine.answered(1, Answer(ReturnType.SUCCESS, 1, 0))

    assert (machine.next_delivery(1.0), machine.finished) == (None, None)
    machine.answered(0, Answer(ReturnType.SUCCESS, 1, 0))
    assert (machine.finished, machine.done) == (ConcurrentFinish.GIVEN_UP, 2)


def test_a_slow_success_counts_as_a_time_out() -> None:
    """E7, D10: for hooks only; a call that raised or returned nothing keeps its name."""
    assert Answer(ReturnType.SUCCESS, 1, 0).ended_after(9.9, timeout_s=10) is ReturnType.SUCCESS
    assert Answer(ReturnType.SUCCESS, 1, 0).ended_after(10.0, timeout_s=10) is ReturnType.TIME_OUT
    assert answer_of_failure(delay_level=0).ended_after(10.0, timeout_s=10) is ReturnType.EXCEPTION


@pytest.mark.parametrize(
    "wrong",
    [
        {"consume_message_batch_max_size": 0},
        {"consume_message_batch_max_size": 1025},
        {"consume_thread_max": 0},
        {"consume_thread_max": 1001},
        {"max_reconsume_times": -1},
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    """E1, E8."""
    with pytest.raises(ValueError, match=next(iter(wrong.values())).__str__()):
        ConcurrentSettings(**wrong)  # type: ignore[arg-type]
