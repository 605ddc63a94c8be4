from __future__ import annotations

import pytest

from pyspark_rocketmq.client.producer.attempts import FaultTable, SendOutcome, avoided_ms
from pyspark_rocketmq.errors import LocalProtocolError, RequestTimeout, SystemBusy
from pyspark_rocketmq.model import MessageQueue
from tests.helpers.fake_clock import FakeClock

A0, A1 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
B0, C0 = MessageQueue("t", "b", 0), MessageQueue("t", "c", 0)


@pytest.fixture
def table(clock: FakeClock) -> FaultTable:
    return FaultTable(clock)


@pytest.mark.parametrize(
    ("latency_ms", "avoided"),
    [
        (0, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000), (2999, 5000),
        (3000, 6000),
        (4999, 6000), (5000, 10_000), (14_999, 10_000), (15_000, 30_000), (10**6, 30_000),
    ],
)  # fmt: skip
def test_a_slow_broker_is_avoided_as_long_as_java_does(latency_ms: int, avoided: int) -> None:
    """G4: the table of 5.x, both sides of each bound."""
    assert avoided_ms(latency_ms) == avoided


@pytest.mark.parametrize(
    ("outcome", "latency_ms", "avoided_s"),
    [
        (SendOutcome.ANSWERED, 600, 2),
        (SendOutcome.REFUSED, 1, 10),
        (SendOutcome.UNHEARD, 1, 10),
    ],
)
def test_a_failure_counts_as_ten_seconds(
    table: FaultTable, clock: FakeClock, outcome: SendOutcome, latency_ms: float, avoided_s: float
) -> None:
    """G4: until the moment itself, not after it."""
    table.note("a", latency_ms, outcome)

    assert not table.is_available("a")
    clock.advance(avoided_s - 0.001)
    assert not table.is_available("a")
    clock.advance(0.001)
    assert table.is_available("a")
    assert table.is_reachable("a") == (outcome is not SendOutcome.REFUSED)


def test_a_quick_answer_ends_no_avoidance(table: FaultTable) -> None:
    """G4: ``FaultItem.updateNotAvailableDuration`` only makes it longer; a refusal is forgotten."""
    table.note("a", 1, SendOutcome.REFUSED)
    table.note("a", 1, SendOutcome.ANSWERED)

    assert not table.is_available("a")
    assert table.is_reachable("a")


def test_available_brokers_come_first_then_reachable_ones_then_any(
    table: FaultTable, clock: FakeClock
) -> None:
    """G4, G3: never the broker that just failed, if there is another."""
    queues = (A0, A1, B0, C0)
    assert table.preferred(queues) == [A0, A1, B0, C0]
    assert table.preferred(queues, "a") == [B0, C0]

    table.note("a", 600, SendOutcome.ANSWERED)
    assert table.preferred(queues) == [B0, C0]
    assert table.preferred(queues, "b") == [C0]

    table.note("b", 1, SendOutcome.REFUSED)
    table.note("c", 1, SendOutcome.REFUSED)
    assert table.preferred(queues) == [A0, A1]

    table.note("a", 1, SendOutcome.REFUSED)
    assert table.preferred(queues, "a") == queues


def test_local_errors_do_not_count_against_a_broker() -> None:
    """G4."""
    assert SendOutcome.of(LocalProtocolError("too large")) is SendOutcome.ANSWERED
    assert SendOutcome.of(SystemBusy(2, "busy")) is SendOutcome.REFUSED
    assert SendOutcome.of(RequestTimeout("h:1", "SEND", 3)) is SendOutcome.UNHEARD
