"""Every option has a test, and the test speaks of it; ``tests/ignored_options.py`` shows that it would fail without."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.write_options import WriteOptions
from tests.ignored_options import Ignoring, load_table
from tests.named_tests import source_of

KEYS = {
    kind: [field.metadata["spec"].key for field in dataclasses.fields(options)]
    for kind, options in (("reading", ReadOptions), ("writing", WriteOptions))
}


def test_every_option_of_reading_and_of_writing_has_a_test() -> None:
    assert {kind: sorted(tests) for kind, tests in load_table().items()} == {
        kind: sorted(keys) for kind, keys in KEYS.items()
    }


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in KEYS.items() for key in keys])
def test_the_test_of_an_option_is_there(kind: str, key: str) -> None:
    node_id = load_table()[kind][key]

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
