"""The chart of a group's lag, in a browser and as a file, and what it is drawn of."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.cli.offsets.lag_chart import LagHistory, write_page, write_png
from pyspark_rocketmq.cli.offsets.lag_samples import draw_lag, lag_history
from pyspark_rocketmq.cli.options import OffsetsLagSettings
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.model import Message, MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit
from tests.cli.test_lag_history import Q0, Q1, moment
from tests.helpers.browser import Browser
from tests.helpers.browser import browser as _browser
from tests.helpers.sending import patient_producer
from tests.helpers.wait import PATIENCE_S

browser = _browser
MESSAGES = 6


@pytest.fixture
def history() -> LagHistory:
    """Two queues, one suspended for a while, a reset and dead letters."""
    moments = [moment(10.0 * number, {Q0: 40 * number, Q1: 100}) for number in range(8)]
    moments[3] = moment(30, {Q0: 120, Q1: 100}, suspended_until_s=99.0, reconsume_times=3)
    return LagHistory(
        group="order-etl", times_s=tuple(10.0 * number for number in range(8)), moments=tuple(moments),
        ends=tuple({Q0: 40 * number + 7, Q1: 100 + 30 * number} for number in range(8)),
        dead_letters=(0, 0, 0, 2, 2, 2, 3, 3), resets_s=(55.0,),
    )  # fmt: skip


def test_the_page_draws_itself_in_a_browser_without_a_network(
    history: LagHistory, browser: Browser, tmp_path: Path
) -> None:
    """B5: every queue, what is waiting, how fast it is consumed, suspensions, dead letters, resets."""
    page, screenshot = tmp_path / "lag.html", tmp_path / "screenshot.png"
    write_page(history, page)

    document = browser.document(page, screenshot)

    assert "https://cdn" not in document
    for text in (
        "Consumer group order-etl", "messages waiting", "messages consumed per second", "new dead letters",
        "orders broker-a:0", "orders broker-a:1",
        "triangle: queue suspended by its listener; dashed line: offsets reset",
    ):  # fmt: skip
        assert f">{text}" in document
    assert document.count('class="mark-line role-mark') == 4
    assert document.count('class="mark-rule role-mark') == 2
    assert screenshot.stat().st_size > 20_000


def test_a_name_cannot_put_markup_into_the_page(tmp_path: Path, browser: Browser) -> None:
    """H9: brokers, topics and groups are named by others;
    what looks like markup is shown as it is written.
    """
    markup = (
        "</script><script>document.title='foreign'</script><!--<img src=x onerror=document.title='foreign'>"
    )
    queue = MessageQueue(f"t{markup}", f"b{markup}", 0)
    moments = tuple(moment(10.0 * number, {queue: number}) for number in range(3))
    history = LagHistory(
        group=f"g{markup}", times_s=(0.0, 10.0, 20.0), moments=moments, ends=({queue: 5},) * 3,
        dead_letters=(0, 0, 0), resets_s=(),
    )  # fmt: skip
    page = tmp_path / "lag.html"

    write_page(history, page)

    text = page.read_text()
    assert markup not in text
    assert "<script>document.title" not in text
    document = browser.document(page, tmp_path / "screenshot.png")
    assert "<title>foreign" not in document
    assert "g&lt;/script&gt;&lt;script&gt;document.title" in document


def test_only_marks_that_are_drawn_are_explained(history: LagHistory, tmp_path: Path) -> None:
    """B5: while a broker is away, nothing is known of what waits, so there is no place for a mark."""
    known, page = list(history.ends), tmp_path / "lag.html"
    known[3] = {}

    write_page(replace(history, ends=tuple(known)), page)

    assert "dashed line: offsets reset" in page.read_text()
    assert "triangle: queue suspended" not in page.read_text()


def test_the_chart_is_a_png_of_its_panels(history: LagHistory, tmp_path: Path) -> None:
    file = tmp_path / "lag.png"
    write_png(history, file)

    content = file.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert width > 1800
    assert height > 1200


@pytest.fixture
def consumed(tmp_path: Path) -> Iterator[OffsetsLagSettings]:
    """A group at offset 4 of two queues with six messages each, one of them suspended."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    with SimCluster(brokers=1) as cluster:
        cluster.create_topic("orders", 2)
        with patient_producer(cluster.name_servers) as producer:
            for queue in producer.queues("orders"):
                producer.send_batch([Message(topic="orders", body=b"x")] * MESSAGES, queue)
        queues = [MessageQueue("orders", "broker-a", number) for number in (0, 1)]
        epoch = store.claim("etl", "me", dict.fromkeys(queues, 0))[queues[0]].epoch
        commits = [
            QueueCommit(queue=queues[0], state=QueueState(4, epoch)),
            QueueCommit(
                queue=queues[1], state=QueueState(4, epoch, reconsume_times=2, suspended_until_s=9e9)
            ),
        ]
        store.commit("etl", commits, query_id="q", batch_id=0)
        yield OffsetsLagSettings(
            offset_store=store.spec,
            name_servers=(cluster.name_servers,),
            consumer_group="etl",
            request_timeout_ms=int(PATIENCE_S * 1000),
        )


def test_a_group_s_past_comes_from_its_store_and_its_brokers(consumed: OffsetsLagSettings) -> None:
    """B5, F1: nothing need have been recorded beforehand."""
    history = lag_history(consumed, hours=1)

    last = [record for record in history.queue_records() if record["at"] == round(history.times_s[-1] * 1000)]
    assert [(record["backlog"], record["state"]) for record in last] == [(2, None), (2, "suspended")]
    assert history.dead_letters[-1] == 0


def test_the_job_writes_both_files(consumed: OffsetsLagSettings, tmp_path: Path) -> None:
    draw_lag(consumed, 1.0, tmp_path / "lag.html", tmp_path / "lag.png")

    assert (tmp_path / "lag.html").stat().st_size > 100_000
    assert (tmp_path / "lag.png").stat().st_size > 10_000


def test_a_chart_is_of_one_group(consumed: OffsetsLagSettings) -> None:
    several = OffsetsLagSettings(offset_store=consumed.offset_store, name_servers=consumed.name_servers)

    with pytest.raises(JobFailed, match="name it with option 'consumerGroup'"):
        lag_history(several, hours=1)
