"""Progress beside what the brokers hold: sorted, lag from the broker's end, JSON that any tool reads."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from rich.console import Console

from pyspark_rocketmq.cli.offsets.records import view_offsets
from pyspark_rocketmq.cli.offsets.show import print_offsets, show_offsets
from pyspark_rocketmq.cli.options import OffsetsShowSettings
from pyspark_rocketmq.cli.output import OutputForm
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.model import MessageQueue, QueueBounds, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import OffsetRow, QueueCommit
from tests.helpers.fake_clock import FakeClock

A0, A1, B0 = (MessageQueue("orders", broker, queue) for broker, queue in (("a", 0), ("a", 1), ("b", 0)))


def row(
    queue: MessageQueue, next_offset: int = 5, group: str = "etl", suspended_until_s: float | None = None
) -> OffsetRow:
    return OffsetRow(
        consumer_group=group,
        queue=queue,
        state=QueueState(next_offset, 1, suspended_until_s=suspended_until_s),
        owner="me",
        query_id="q",
        batch_id=3,
        updated_at_s=1_700_000_000.5,
    )


def shown(path: Path, form: OutputForm = OutputForm.TABLE, **settings: Any) -> str:
    output = io.StringIO()
    console = Console(file=output, width=200)
    show_offsets(OffsetsShowSettings(offset_store=str(path), **settings), console, form)
    return output.getvalue()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    store = DeltaOffsetStore(tmp_path / "offsets", clock=FakeClock())
    for group in ("etl", "audit"):
        rows = store.claim(group, "me", {B0: 0, A1: 0, A0: 0})
        commits = [QueueCommit(queue=A1, state=QueueState(42, rows[A1].epoch, reconsume_times=1))]
        store.commit(group, commits, query_id="q", batch_id=0)
    return tmp_path / "offsets"


def test_rows_are_sorted_by_group_and_queue() -> None:
    views = view_offsets([row(B0), row(A1, group="z"), row(A1), row(A0)], {})

    assert [(view.row.consumer_group, view.row.queue) for view in views] == [
        ("etl", A0),
        ("etl", A1),
        ("etl", B0),
        ("z", A1),
    ]


def test_lag_is_what_the_broker_holds_beyond_the_next_offset() -> None:
    bounds = {A0: QueueBounds(min_offset=2, max_offset=9), A1: QueueBounds(min_offset=0, max_offset=3)}

    lags = [view.lag.messages for view in view_offsets([row(A0), row(A1), row(B0)], bounds)]

    assert lags == [4, 0, None]


def test_an_offset_beyond_the_end_is_shown_with_the_difference() -> None:
    """F5: no messages behind is not all there is to say of it."""
    (beyond,) = view_offsets([row(A0, next_offset=12)], {A0: QueueBounds(min_offset=2, max_offset=9)})
    (at_end,) = view_offsets([row(A0, next_offset=9)], {A0: QueueBounds(min_offset=2, max_offset=9)})

    assert (beyond.columns()["lag"], beyond.columns()["note"]) == (0, "beyond the end by 3")
    assert at_end.columns()["note"] is None
    output = io.StringIO()
    print_offsets([beyond], Console(file=output, width=200))
    assert "beyond the end by 3" in output.getvalue()


@pytest.mark.parametrize("width", [300, 120, 100])
def test_a_table_for_people_is_at_most_120_characters_wide(width: int) -> None:
    """With a broker, a suspended queue and one beyond its end; the offsets and the lag always stay."""
    queues = [MessageQueue("orders", f"broker-number-{number}", number) for number in range(3)]
    rows = [row(queue, next_offset=10**9 + 7, suspended_until_s=1_700_000_001.25) for queue in queues]
    bounds = {queue: QueueBounds(min_offset=10**9, max_offset=10**9 + at) for at, queue in enumerate(queues)}
    output = io.StringIO()

    print_offsets(view_offsets(rows, bounds), Console(file=output, width=width))

    text = output.getvalue()
    assert max(map(len, text.splitlines())) <= min(width, 120)
    for shown_column in ("brokerName", "queueId", "nextOffset", "lag", "note", "suspendedUntil"):
        assert shown_column in text
    assert text.count("2023-11-14 22:13:21") == 3
    assert "--json shows more: epoch" in text


def test_times_are_iso_8601_in_utc() -> None:
    (view,) = view_offsets([row(A0, suspended_until_s=1_700_000_001.25)], {})

    assert view.columns()["updatedAt"] == "2023-11-14T22:13:20.500+00:00"
    assert view.columns()["suspendedUntil"] == "2023-11-14T22:13:21.250+00:00"


def test_json_holds_one_object_per_queue_of_the_group(table: Path) -> None:
    entries = json.loads(shown(table, form=OutputForm.JSON, consumer_group="etl"))

    assert [(entry["brokerName"], entry["queueId"], entry["nextOffset"]) for entry in entries] == [
        ("a", 0, 0),
        ("a", 1, 42),
        ("b", 0, 0),
    ]
    assert entries[1]["reconsumeTimes"] == 1
    assert entries[0]["lag"] is None


def test_every_group_is_shown_when_none_is_named(table: Path) -> None:
    text = shown(table)

    assert text.index("consumer group audit") < text.index("consumer group etl")
    assert "lag" not in text


def test_a_broadcasting_group_is_shown_with_all_its_instances(tmp_path: Path) -> None:
    """B3, A6: by the group's name, in its namespace or in any."""
    store = DeltaOffsetStore(tmp_path / "offsets", clock=FakeClock())
    for group in ("etl@one", "etl@two", "shop%etl", "other"):
        store.claim(group, "me", {A0: 0})

    def groups(**settings: Any) -> list[str]:
        entries = json.loads(shown(tmp_path / "offsets", form=OutputForm.JSON, **settings))
        return [entry["consumerGroup"] for entry in entries]

    assert groups(consumer_group="etl") == ["etl@one", "etl@two", "shop%etl"]
    assert groups(consumer_group="shop%etl") == groups(namespace="shop") == ["shop%etl"]


def test_an_unknown_group_is_refused_with_the_known_ones(table: Path) -> None:
    with pytest.raises(JobFailed, match="its groups are: audit, etl"):
        shown(table, consumer_group="elt")


def test_a_missing_table_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="There are no offsets"):
        shown(tmp_path / "nothing")

    assert not DeltaTable.is_deltatable(str(tmp_path / "nothing"))
