"""What a replay into a table says before it begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_rocketmq.replay import replay

WARNING = "nothing else may write the table while the replay runs path=s3a://lake/t"


@pytest.mark.parametrize(
    ("address", "settings", "warns"),
    [
        ("s3a://lake/t", {}, True),
        ("s3a://lake/t", {"spark.delta.logStore.s3a.impl": "org.example.ForSeveral"}, False),
        ("/lake/t", {}, False),
    ],
)
def test_a_replay_into_a_table_on_s3_warns_of_others_that_write_it(
    address: str, settings: dict[str, str], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """H3, J1: Delta's default log store may overwrite a commit of theirs, and they one of its steps."""
    session: Any = SimpleNamespace(conf=settings)

    replay._warn_of_other_writers(session, address)

    assert (WARNING in caplog.text) == warns
