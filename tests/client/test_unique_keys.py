from __future__ import annotations

import datetime as dt

import pytest

from pyspark_rocketmq.client.producer.producer import UniqueKeys, month_start_s
from pyspark_rocketmq.client.transport import local_ip
from tests.helpers.fake_clock import FakeClock


def test_keys_differ_between_calls_and_between_producers() -> None:
    """G2: the id survives retries and names one send."""
    clock = FakeClock()
    first, second = UniqueKeys(clock), UniqueKeys(clock)
    keys = {keys.next() for keys in (first, second) for _ in range(1000)}

    assert len(keys) == 2000
    assert all(len(key) == 32 and key == key.upper() for key in keys)


def test_a_unique_key_has_the_time_it_was_made() -> None:
    """G2: milliseconds since the local month began, as Java writes them."""
    clock = FakeClock()
    since_ms = int((clock.now_s() - month_start_s(clock.now_s())) * 1000)

    assert int(UniqueKeys(clock).next()[20:28], 16) == since_ms


def test_the_time_begins_again_with_each_month() -> None:
    """G2: keys are made for longer than a month."""
    clock = FakeClock()
    keys = UniqueKeys(clock)
    for _ in range(70):
        since_ms = int((clock.now_s() - month_start_s(clock.now_s())) * 1000)
        assert int(keys.next()[20:28], 16) == since_ms
        clock.advance(86_400)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"])
def test_the_month_begins_at_local_midnight(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """G2: also where a clock change lies in between (Java: the first instant of the month)."""
    import time
    from zoneinfo import ZoneInfo

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        now = dt.datetime(2024, 3, 20, 15, 30, tzinfo=ZoneInfo(zone))
        start = dt.datetime(2024, 3, 1, tzinfo=ZoneInfo(zone))

        assert month_start_s(now.timestamp()) == start.timestamp()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_address_has_four_bytes_with_or_without_a_network() -> None:
    """G2: keys of one producer have one length."""
    assert len(local_ip()) == 4
