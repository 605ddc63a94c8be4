"""Consumers that commit while their batches run, of which parts are killed (-9) at every step."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions
from tests.end_to_end.test_kill import check_concurrent
from tests.helpers.cluster import LONG_ON_REAL, SIM_ONLY, ClusterUnderTest
from tests.helpers.delivery_log import DeliveryLog
from tests.helpers.driver_process import run_driver
from tests.helpers.live_kill_driver import DRIVER_POINTS, WORKER_POINTS, deaths_at
from tests.helpers.orders import STEPS, check_sink, produce_orders

pytestmark = [pytest.mark.driver]

REAL_TIME = {"realTime": "5 seconds"}
MICRO_BATCHES = {"processingTime": "1 second"}

_POINTS = WORKER_POINTS + DRIVER_POINTS
_ORDERS = 10
"""Orders sent together."""
_PAUSE_S = 0.3
_TURN_S = 6.0
"""How long another member stays, and is away."""
_START_S = 500.0
"""How long each start of the driver may take."""


class Traffic:
    """Orders that keep coming, and another member that comes and goes and consumes nothing,
    until everything has died that is to die.
    """

    def __init__(self, cluster: ClusterUnderTest, folder: Path, deaths: int, *, is_orderly: bool) -> None:
        self.name_servers = cluster.name_servers
        self._folder = folder
        self._deaths = deaths
        self._is_orderly = is_orderly
        self.topic = cluster.create_topic(queues=4)
        self.group = cluster.unique_name("group")
        self.expected: dict[str, Sequence[str]] = {}
        self._is_over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run until the block ends; its end must come after the last death."""
        thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _run(self) -> None:
        try:
            while len(list(self._folder.glob("killed-*"))) < self._deaths and not self._is_over.is_set():
                with self._rival():
                    self._send_for(_TURN_S)
                self._send_for(_TURN_S)
        finally:
            # In one step, because the driver looks for it.
            (self._folder / "sent").write_text(str(len(self.expected) * len(STEPS)))
            (self._folder / "sent").rename(self._folder / "finish")

    def _send_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            first = len(self.expected)
            self.expected |= produce_orders(
                self.name_servers, self.topic, _ORDERS, first=first, shows_keys=True
            )
            self._is_over.wait(_PAUSE_S)

    @contextmanager
    def _rival(self) -> Iterator[None]:
        clock = SystemClock()
        store = MemoryOffsetStore("rival", clock=clock)
        options = ReadOptions.parse(
            {
                "nameServers": self.name_servers,
                "topic": self.topic,
                "consumerGroup": self.group,
                "offsetStore": store.spec,
                "consumeOrderly": str(self._is_orderly).lower(),
            }
        )
        member = join_group(options, "rival", store, clock)
        member.start()
        try:
            yield
        finally:
            member.stop(_TURN_S)


def kill_all(
    traffic: Traffic,
    work: Path,
    deaths: Sequence[tuple[str, str]],
    *,
    is_orderly: bool,
    trigger: Mapping[str, str],
    **more: str,
) -> None:
    """Consume the traffic, and start again after each death of a driver, until it is consumed.

    ``more``: further settings of :mod:`tests.helpers.live_kill_driver`.
    """
    config = {
        "nameServers": traffic.name_servers,
        "topic": traffic.topic,
        "group": traffic.group,
        "work": str(work),
        "deaths": deaths,
        "isOrderly": is_orderly,
        "trigger": trigger,
        **more,
    }
    log = work / "driver.log"
    starts = 1 + sum(victim != "worker" for _, victim in deaths)

    with traffic.running():
        codes = [
            run_driver("tests.helpers.live_kill_driver", config, log, timeout_s=_START_S)
            for _ in range(starts)
        ]

    assert codes == [-signal.SIGKILL] * (starts - 1) + [0], log.read_text()[-4000:]
    assert len(list(work.glob("killed-*"))) == len(deaths)


def kill_and_check(
    cluster: ClusterUnderTest,
    work: Path,
    deaths: Sequence[tuple[str, str]],
    *,
    is_orderly: bool = True,
    trigger: Mapping[str, str] = REAL_TIME,
) -> None:
    traffic = Traffic(cluster, work, len(deaths), is_orderly=is_orderly)
    kill_all(traffic, work, deaths, is_orderly=is_orderly, trigger=trigger)
    if not is_orderly:
        check_concurrent(
            DeltaTable(work / "sink"), traffic.expected, traffic.topic, f"%RETRY%{traffic.group}"
        )
        return
    report = check_sink(work / "sink", traffic.expected)
    assert report.is_clean, report
    assert report.messages == len(traffic.expected) * len(STEPS)
    _check_calls(DeliveryLog(work / "deliveries"), report.messages)


def land_and_check(
    cluster: ClusterUnderTest,
    work: Path,
    deaths: Sequence[tuple[str, str]],
    *,
    trigger: Mapping[str, str],
) -> None:
    """Kill a consumer that writes columns of messages; each message is one row in the end."""
    traffic = Traffic(cluster, work, len(deaths), is_orderly=True)
    kill_all(traffic, work, deaths, is_orderly=True, trigger=trigger, columns="keys,tags")

    rows = DeltaTable(work / "sink").to_pyarrow_table().to_pylist()
    positions = Counter((row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)
    assert set(positions.values()) == {1}
    sent = {(order_id, step): 1 for order_id, steps in traffic.expected.items() for step in steps}
    assert Counter((row["keys"], row["tags"]) for row in rows) == sent


def _check_calls(log: DeliveryLog, messages: int) -> None:
    """Check that each message was delivered, and none before the one that it follows."""
    assert len(log.times_delivered()) == messages
    for queue, deliveries in log.by_queue().items():
        offsets = [-1, *(offset for delivery in deliveries for offset in delivery.queue_offsets)]
        newest = accumulate(offsets, max)
        assert [pair for pair in zip(newest, offsets[1:], strict=False) if pair[1] > pair[0] + 1] == [], queue


@LONG_ON_REAL
@pytest.mark.long
@pytest.mark.parametrize("trigger", [REAL_TIME, MICRO_BATCHES], ids=["real time", "micro-batches"])
def test_columns_of_messages_are_in_the_sink_once_after_deaths(
    cluster: ClusterUnderTest, tmp_path: Path, trigger: Mapping[str, str]
) -> None:
    """H1, H2, I2, K7: while its queues change hands."""
    deaths = [("part_received", "worker"), ("after_data_commit", "group")]
    land_and_check(cluster, tmp_path, deaths, trigger=trigger)


@SIM_ONLY
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("trigger", "first"),
    [(REAL_TIME, "driver"), (MICRO_BATCHES, "group")],
    ids=["real time", "micro-batches"],
)
def test_columns_of_messages_are_in_the_sink_once_after_deaths_at_every_step(
    cluster: ClusterUnderTest, tmp_path: Path, trigger: Mapping[str, str], first: str
) -> None:
    """H1, H2, I2, K7: a worker, and a driver or group, dies at each step."""
    land_and_check(cluster, tmp_path, deaths_at(_POINTS, first=first), trigger=trigger)


@LONG_ON_REAL
def test_a_query_in_real_time_goes_on_after_deaths(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """H1, H2, I1, I2: with a part on its way, and between the commits of sink and store."""
    kill_and_check(cluster, tmp_path, [("part_received", "worker"), ("after_data_commit", "group")])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("trigger", "is_orderly"),
    [(REAL_TIME, True), (REAL_TIME, False), (MICRO_BATCHES, True)],
    ids=["orderly in real time", "concurrent in real time", "orderly in micro-batches"],
)
def test_every_message_is_in_the_sink_after_deaths_at_every_step(
    cluster: ClusterUnderTest, tmp_path: Path, trigger: Mapping[str, str], *, is_orderly: bool
) -> None:
    """H1, H2, E3, I1, I2: whatever was committed before stays, once; batches end, some are replayed, and queues
    change hands. A driver dies where the other backend's group does.
    """
    deaths = deaths_at(_POINTS, first="driver" if cluster.kind == "sim" else "group")
    kill_and_check(cluster, tmp_path, deaths, is_orderly=is_orderly, trigger=trigger)
