"""What works through Spark Connect, and the words of what does not, as docs/how-to/sql.md has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cluster import SIM_ONLY, ClusterUnderTest
from tests.helpers.driver_process import run_driver
from tests.helpers.orders import STEPS, produce_orders

TIMEOUT_S = 500
COUNT = 10 * len(STEPS)


def attempted(cluster: ClusterUnderTest, folder: Path, *attempts: str) -> dict[str, Any]:
    """What came of each, in a session with a server of its own."""
    source, target = (cluster.create_topic(queues=2, brokers=["broker-a"]) for _ in range(2))
    produce_orders(cluster.name_servers, source, 10)
    config = {
        "nameServers": cluster.name_servers,
        "broker": cluster.broker_addresses["broker-a"],
        "source": source,
        "target": target,
        "folder": str(folder),
        "attempts": " ".join(attempts),
    }
    log = folder / "log"

    code = run_driver("tests.helpers.connect_driver", config, log, timeout_s=TIMEOUT_S)

    assert code == 0, log.read_text()[-4000:]
    found: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    assert found.pop("session") == "pyspark.sql.connect.session"
    return found


@SIM_ONLY
@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_only_spark_reads_and_writes_works_through_spark_connect(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """H3, G6, J4: batch, stream and SQL; by_sharding_key without the number of cores, which Connect does not
    tell; a replay into a table.
    """
    found = attempted(
        cluster,
        tmp_path,
        *("register", "read", "view", "read_stream", "storage_options", "write", "write_stream"),
        "replay_to_table",
    )

    assert found == {
        "register": None,
        "read": COUNT,
        "view": COUNT,
        "read_stream": COUNT,
        "storage_options": {"aws_access_key_id": "key"},
        "write": COUNT,
        "write_stream": 2 * COUNT,
        "replay_to_table": [COUNT, 0],
    }


@SIM_ONLY
@pytest.mark.long
@pytest.mark.timeout(600)
def test_consumers_work_through_spark_connect(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    """D1, D2, E1, H1: every row once and in order, with the committer in a process of the server."""
    found = attempted(
        cluster,
        tmp_path,
        "orderly",
        "orderly_again",
        "read_from_offset_store",
        "with_commits",
        "concurrent",
        "table",
    )

    assert found == {
        "orderly": COUNT,
        "orderly_again": COUNT,
        "read_from_offset_store": 0,
        "with_commits": [COUNT, True],
        "concurrent": COUNT,
        "table": COUNT,
    }


@SIM_ONLY
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_listener_s_calls_end_with_a_query_of_spark_connect(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """D1, H1, H11: Spark Connect goes on with the job of a query that was stopped, or whose process died; calls
    that went on would meet those of the query's next run.
    """
    assert attempted(cluster, tmp_path, "ends_the_calls") == {"ends_the_calls": {"stop": True, "kill": True}}


@SIM_ONLY
@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_spark_connect_makes_impossible_is_refused_in_a_sentence(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    """D1, H1, J3: nothing is begun that would promise less than with a classic session."""
    refusals = {
        "state_engine": "Spark Connect goes on with the job of a batch when its query is stopped",
        "batch_listener": "the batch listener cannot be sent to the server, where Spark Connect runs foreachBatch",
        "renewed_storage": "the storage_options of the offset store are a callable",
        "replay_to_topic": "A Replay to a topic does not work with Spark Connect: when this process dies",
        "job": "Command 'demo' does not work with Spark Connect: it runs beside Spark's driver",
    }

    found = attempted(cluster, tmp_path, *refusals)

    for attempt, words in refusals.items():
        assert words in found[attempt]
    assert not (tmp_path / "state").exists(), "nothing is made"
