"""Sessions that run slow tasks twice: what is refused, and what can only be warned of."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_rocketmq.datasource.format import register
from pyspark_rocketmq.datasource.key_order import by_sharding_key
from pyspark_rocketmq.errors import OptionError


def session(*, is_speculative: bool) -> Any:
    """What is asked of one; it takes every data source."""
    conf = {"spark.speculation": str(is_speculative).lower()}
    return SimpleNamespace(conf=conf, dataSource=SimpleNamespace(register=lambda source: None))


def test_rows_are_not_arranged_by_key_where_two_copies_of_a_task_would_send_them() -> None:
    """G6"""
    rows = SimpleNamespace(
        isStreaming=False, columns=["body", "shardingKey"], sparkSession=session(is_speculative=True)
    )

    with pytest.raises(OptionError, match=r"send the same rows, at the same time.*spark\.speculation=false"):
        by_sharding_key(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_speculative", [True, False])
def test_whoever_registers_the_source_there_is_warned(
    is_speculative: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """G6: reading is harmless, and what writes cannot see the session."""
    with caplog.at_level(logging.WARNING, "pyspark_rocketmq"):
        register(session(is_speculative=is_speculative))

    assert [record.message.startswith("spark.speculation is on") for record in caplog.records] == (
        [True] if is_speculative else []
    )
