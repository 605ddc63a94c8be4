"""Every option has a test, and the test speaks of it; ``tests/ignored_options.py`` shows that it would fail without."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyspark_rocketmq.options import ReadOptions
from tests.ignored_options import Ignoring, load_table
from tests.named_tests import source_of

KEYS = [field.metadata["spec"].key for field in dataclasses.fields(ReadOptions)]


def test_every_option_of_reading_has_a_test() -> None:
    assert sorted(load_table()) == sorted(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_the_test_of_an_option_is_there(key: str) -> None:
    node_id = load_table()[key]

    assert source_of(node_id), f"{node_id} is not there"
    assert key in Path(node_id.partition("::")[0]).read_text() + SHARED, f"{node_id} says nothing of {key}"


SHARED = "".join(
    (Path(__file__).parent / name).read_text() for name in ("source/conftest.py", "helpers/secured.py")
)
"""What tests share: options that every read needs."""


def test_an_ignored_option_is_as_if_nobody_had_written_it() -> None:
    given = {"nameServers": "n:1", "topic": "orders", "pullBatchSize": "7"}
    ignoring = Ignoring("pullBatchSize")
    ignoring.pytest_sessionstart()
    try:
        ignored = ReadOptions.parse(given)
    finally:
        ignoring.pytest_sessionfinish()

    assert [ignored.pull_batch_size, ReadOptions.parse(given).pull_batch_size] == [32, 7]
