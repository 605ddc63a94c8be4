"""Every option has a test, the test speaks of it, and fails without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from pyspark_rocketmq.options.declare import specs_of
from pyspark_rocketmq.options.read import ReadOptions
from pyspark_rocketmq.options.write import WriteOptions
from tests.helpers.backend_counts import COUNTS_FILE
from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.helpers.taken_files import TAKEN_FOLDER
from tests.ignored_options import QUICK, SLOW, WithoutEach, ignored, load_table
from tests.named_tests import source_of

KEYS = {
    kind: [spec.key for spec in specs_of(options)]
    for kind, options in (("reading", ReadOptions), ("writing", WriteOptions))
}


SHARED = "".join(
    (Path(__file__).parents[1] / name).read_text() for name in ("source/conftest.py", "helpers/secured.py")
)
"""What tests share: options that every read needs."""


def test_every_option_of_reading_and_of_writing_has_a_test() -> None:
    assert {kind: sorted(tests) for kind, tests in load_table().items()} == {
        kind: sorted(keys) for kind, keys in KEYS.items()
    }


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in KEYS.items() for key in keys])
def test_the_test_of_an_option_is_there(kind: str, key: str) -> None:
    node_id = load_table()[kind][key]

    assert source_of(node_id), f"{node_id} is not there"
    assert key in Path(node_id.partition("::")[0]).read_text() + SHARED, f"{node_id} says nothing of {key}"


def test_an_ignored_option_has_no_effect() -> None:
    given = {"nameServers": "n:1", "topic": "orders", "pullBatchSize": "7"}
    with ignored("pullBatchSize"):
        without = ReadOptions.parse(given)

    assert [without.pull_batch_size, ReadOptions.parse(given).pull_batch_size] == [32, 7]


class SomeTest(NamedTuple):
    """In place of pytest's."""

    nodeid: str


def test_a_test_that_succeeds_without_its_option_is_found() -> None:
    test = cast(pytest.Item, SomeTest("test"))
    proof = WithoutEach({"test": ["topic"]}, as_they_are=False)
    proof._key_of = {test: "topic"}

    silent, telling = (proof.pytest_runtest_call(test) for _ in range(2))
    assert next(silent) is next(telling) is None

    with pytest.raises(StopIteration):
        telling.throw(ValueError("the test fails"))
    with pytest.raises(AssertionError, match="succeeds although option topic is ignored"):
        silent.send(None)


def test_each_test_fails_without_its_option() -> None:
    """All but those that take their time to: `make option-test` tries these, too."""
    own = (COUNTS_FILE, TAKEN_FOLDER, "CI")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ignored_options", QUICK],
        cwd=REPO,
        env={name: text for name, text in ENVIRONMENT.items() if name not in own},
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    tried = {kind: [key for key in tests if key not in SLOW] for kind, tests in load_table().items()}
    assert f"{len(tried['reading']) + len(tried['writing'])} passed" in done.stdout
