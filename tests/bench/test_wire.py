from __future__ import annotations

from bench import wire
from bench.page import tables
from pyspark_rocketmq.wire.columnar.schema import MESSAGE_SCHEMA
from pyspark_rocketmq.wire.messages import decode_messages
from tests.helpers.stored_messages import decode_columns


def test_every_case_is_decoded_alike_by_both_decoders() -> None:
    for case in wire._cases(1 << 14):
        messages = decode_messages(case.data, "broker-a")
        names = MESSAGE_SCHEMA.names if case.columns is None else list(case.columns)
        columns = decode_columns(case.data, "broker-a", columns=names)

        assert len(messages) == columns.num_rows == case.messages
        assert columns.column("queueOffset").to_pylist() == [message.queue_offset for message in messages]
        assert columns.column("body").to_pylist() == [message.body for message in messages]


def test_a_short_run_gives_ratios_and_the_targets_of_the_page() -> None:
    result = wire.run(rounds=2, mebibytes=1 / 64)

    assert [target.what for target in result.targets] == [
        "columnar / plain, 100 B",
        "columnar, 100 B",
        "columnar / plain, 1 KiB",
    ]
    assert all(float(row[-2]) > 0 for row in result.rows)
    assert "sent in batches" in tables(result)
