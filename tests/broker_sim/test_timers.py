"""Messages with a moment of their own: TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS."""

from __future__ import annotations

import pytest

from broker_sim.broker import Broker
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.wire.codes import ResponseCode
from tests.broker_sim.exchange import TOPIC, ask, make_broker, send
from tests.broker_sim.stored_messages import stored_messages
from tests.helpers.fake_clock import FakeClock

_NOW_MS = 1_700_000_000_201
_TIMER_TOPIC = "rmq_sys_wheel_timer"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(_NOW_MS / 1000)


@pytest.fixture
def broker(clock: FakeClock) -> Broker:
    return make_broker(clock)


def _send(broker: Broker, timer: str, value: int | str, **properties: str) -> int:
    texts = {"UNIQ_KEY": "AB", timer: str(value), **properties}
    return ask(broker, send(b"timer", i="".join(f"{k}\x01{v}\x02" for k, v in texts.items()))).code


@pytest.mark.parametrize(
    ("timer", "value", "out_ms"),
    [
        ("TIMER_DELAY_MS", 1500, 1_700_000_001_000),
        ("TIMER_DELAY_SEC", 2, 1_700_000_002_000),
        ("TIMER_DELIVER_MS", 1_700_000_003_000, 1_700_000_002_000),
        ("TIMER_DELIVER_MS", 1_700_000_003_001, 1_700_000_003_000),
    ],
)
def test_a_timer_waits_until_the_second_behind_its_moment(
    broker: Broker, clock: FakeClock, timer: str, value: int, out_ms: int
) -> None:
    """G2: moments are cut to whole seconds, and a message comes one of them later, so never too early."""
    assert _send(broker, timer, value) == ResponseCode.SUCCESS
    (waiting,) = stored_messages(broker, _TIMER_TOPIC)
    assert waiting.properties["TIMER_OUT_MS"] == str(out_ms)
    deadline_s = broker.next_deadline_s()
    assert deadline_s is not None

    clock.advance((out_ms + 1000 - _NOW_MS) / 1000 - 0.01)
    broker.look_at_clock()
    assert stored_messages(broker, TOPIC) == []
    clock.advance(0.02)
    broker.look_at_clock()

    (delivered,) = stored_messages(broker, TOPIC)
    assert delivered.properties.keys() == {
        *(timer, "UNIQ_KEY", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        *("REAL_TOPIC", "REAL_QID", "MSG_REGION", "TRACE_ON", "CLUSTER"),
    }
    assert delivered.properties["TIMER_ENQUEUE_MS"] == "1700000000000"
    assert deadline_s <= clock.monotonic_s()


@pytest.mark.parametrize(("timer", "value"), [("TIMER_DELIVER_MS", _NOW_MS), ("TIMER_DELAY_MS", 0)])
def test_a_moment_that_is_over_delays_nothing(broker: Broker, timer: str, value: int) -> None:
    """G2."""
    assert _send(broker, timer, value) == ResponseCode.SUCCESS
    (stored,) = stored_messages(broker, TOPIC)
    assert "TIMER_OUT_MS" not in stored.properties


@pytest.mark.parametrize("value", [3 * 24 * 3600 + 1, "soon", "1_0"])
def test_a_moment_too_far_away_or_no_number_is_refused(broker: Broker, value: object) -> None:
    """G2: three days at most."""
    assert _send(broker, "TIMER_DELAY_SEC", str(value)) == ResponseCode.MESSAGE_ILLEGAL


def test_a_delay_level_wins_over_a_timer(broker: Broker) -> None:
    """G2."""
    _send(broker, "TIMER_DELAY_SEC", 9, DELAY="2")
    (waiting,) = stored_messages(broker, "SCHEDULE_TOPIC_XXXX")
    assert "TIMER_DELAY_SEC" not in waiting.properties


def test_a_broker_without_timers_refuses_them(clock: FakeClock) -> None:
    """G2: timerWheelEnable=false."""
    broker = make_broker(clock, settings=BrokerSettings(timer_wheel_enable=False))
    assert _send(broker, "TIMER_DELAY_SEC", 1) == ResponseCode.SYSTEM_ERROR
