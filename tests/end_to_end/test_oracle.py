from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from tests.helpers.orders import STEPS, check_sink

EXPECTED = {f"order-{number}": STEPS for number in range(20)}
ROWS = [(order_id, step) for step in STEPS for order_id in EXPECTED]


def sink_of(folder: Path, delivered_ns: list[int]) -> Path:
    """A sink's table whose one queue has ``ROWS`` in order of their offsets, delivered at these times."""
    order_ids, steps = zip(*ROWS, strict=True)
    columns = {
        "topic": ["orders"] * len(ROWS),
        "brokerName": ["broker-a"] * len(ROWS),
        "queueId": pa.array([0] * len(ROWS), pa.int32()),
        "queueOffset": range(len(ROWS)),
        "order_id": order_ids,
        "step": steps,
        "delivered_ns": delivered_ns,
    }
    write_deltalake(str(folder), pa.table(columns))
    return folder


def test_a_sink_whose_messages_were_delivered_in_order_is_clean(tmp_path: Path) -> None:
    """D1: also where the clock did not move between two of them."""
    report = check_sink(sink_of(tmp_path / "sink", [at // 2 for at in range(len(ROWS))]), EXPECTED)

    assert report.is_clean, str(report)
    assert report.rows == 100


def test_a_delivery_out_of_order_is_found_although_the_table_has_every_row(tmp_path: Path) -> None:
    """D1: offsets and steps agree with each other; only the moments of delivery differ."""
    moments = list(range(len(ROWS)))
    random.Random(7).shuffle(moments)

    report = check_sink(sink_of(tmp_path / "sink", moments), EXPECTED)

    assert (report.messages, report.duplicates, report.lost, report.unexpected) == (100, 0, 0, 0)
    assert report.order_violations > 50


def test_two_messages_that_changed_places_are_found(tmp_path: Path) -> None:
    """D1: of different orders, whose own steps are in sequence."""
    moments = list(range(len(ROWS)))
    moments[4], moments[5] = moments[5], moments[4]

    report = check_sink(sink_of(tmp_path / "sink", moments), EXPECTED)

    assert report.order_violations == 1
    assert "offset=4" in str(report)
