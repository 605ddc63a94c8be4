from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_sim.groups import LOCK_MAX_LIVE_TIME_S, LockTable
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.fake_clock import FakeClock

_QUEUES = tuple(MessageQueue("T", "broker-a", queue_id) for queue_id in range(3))


def test_a_held_queue_is_refused_to_others_and_absent_from_their_answer(clock: FakeClock) -> None:
    """C1: refused queues are simply not among the granted ones."""
    locks = LockTable(clock)
    assert locks.lock_batch("G", "one", _QUEUES[:2]) == frozenset(_QUEUES[:2])
    assert locks.lock_batch("G", "two", _QUEUES) == frozenset(_QUEUES[2:])


def test_groups_do_not_see_each_others_locks(clock: FakeClock) -> None:
    """C1: a lock belongs to one group."""
    locks = LockTable(clock)
    locks.lock_batch("G", "one", _QUEUES)
    assert locks.lock_batch("H", "two", _QUEUES) == frozenset(_QUEUES)


def test_a_lock_expires_60_seconds_after_its_last_renewal(clock: FakeClock) -> None:
    """C2: renewal counts from the last success; exactly 60 s is still held."""
    locks = LockTable(clock)
    locks.lock_batch("G", "one", _QUEUES[:1])
    clock.advance(50)
    locks.lock_batch("G", "one", _QUEUES[:1])
    clock.advance(LOCK_MAX_LIVE_TIME_S)
    assert locks.lock_batch("G", "two", _QUEUES[:1]) == frozenset()
    assert locks.has_live_lock("G")
    clock.advance(0.001)
    assert not locks.has_live_lock("G")
    assert locks.holder("G", _QUEUES[0]) is None
    assert locks.lock_batch("G", "two", _QUEUES[:1]) == frozenset(_QUEUES[:1])
    assert locks.holder("G", _QUEUES[0]) == "two"


def test_only_the_holder_can_unlock(clock: FakeClock) -> None:
    locks = LockTable(clock)
    locks.lock_batch("G", "one", _QUEUES[:1])
    locks.unlock_batch("G", "two", _QUEUES)
    assert locks.holder("G", _QUEUES[0]) == "one"
    locks.unlock_batch("G", "one", _QUEUES)
    assert locks.lock_batch("G", "two", _QUEUES[:1]) == frozenset(_QUEUES[:1])


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["lock", "unlock"]),
            st.sampled_from(["one", "two"]),
            st.sets(st.sampled_from(_QUEUES)),
            st.sampled_from([0.0, 20.0, 59.0, 61.0]),
        )
    )
)
def test_a_queue_never_has_two_holders_within_60_seconds(
    steps: list[tuple[str, str, set[MessageQueue], float]],
) -> None:
    """C2: two clients are granted the same queue only after expiry or unlock."""
    clock = FakeClock()
    locks = LockTable(clock)
    granted_at: dict[MessageQueue, tuple[str, float]] = {}
    for action, client, queues, wait_s in steps:
        clock.advance(wait_s)
        now_s = clock.monotonic_s()
        if action == "unlock":
            locks.unlock_batch("G", client, queues)
            granted_at = {q: held for q, held in granted_at.items() if q not in queues or held[0] != client}
            continue
        granted = locks.lock_batch("G", client, queues)
        for queue in queues:
            holder, since_s = granted_at.get(queue, (client, now_s))
            assert (queue in granted) == (holder == client or now_s - since_s > LOCK_MAX_LIVE_TIME_S)
        granted_at.update((queue, (client, now_s)) for queue in granted)


def test_an_operator_may_let_locks_live_shorter(clock: FakeClock) -> None:
    """C2: system property rocketmq.broker.rebalance.lockMaxLiveTime."""
    locks = LockTable(clock, max_live_s=5.0)
    locks.lock_batch("G", "one", _QUEUES[:1])
    clock.advance(5.1)

    assert locks.holder("G", _QUEUES[0]) is None
    assert locks.lock_batch("G", "two", _QUEUES[:1]) == frozenset(_QUEUES[:1])
