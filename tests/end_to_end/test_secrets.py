"""Credentials reach every process that needs them and nothing that anybody reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.model import Message, MessageQueue
from tests.helpers.certificates import KEY_PASSWORD
from tests.helpers.driver_process import ENVIRONMENT, REPO
from tests.helpers.secured import SECRET, TOPIC, USER, secured_sim
from tests.object_stores.server import KEY, Bucket
from tests.object_stores.server import SECRET as STORAGE_SECRET

TOKEN = "security-token-5d27ee"
REFUSED_KEY = "AKIAREFUSED6b1d"
MESSAGES = 40
STEPS = (
    f"batch {MESSAGES}",
    f"sink {MESSAGES}",
    f"database {MESSAGES}",
    "sent back 1",
    f"object store {MESSAGES}",
    f"up to the group {MESSAGES}",
    "written 20",
    "there is no queue 99",
    "check signature failed",
    "lag ended with 0",
    "misspelt ended with 2",
    *(
        f"{how} ended with 2"
        for how in ("colon", "blank", "in two words", "nameless", "beside a server", "in a URI")
    ),
)
LEFT = {
    *("storage-checkpoint", "checkpoint", "concurrent-checkpoint", "stream-checkpoint", "refused-checkpoint"),
    *("web", "events", "offsets", "concurrent-offsets", "sink", "concurrent-sink", "rows.sqlite"),
}


@pytest.mark.long
@pytest.mark.sim
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_secrets_are_in_no_log_plan_checkpoint_table_or_error(tmp_path: Path, s3: Bucket) -> None:
    """A5 ★, J1: batches, streams, consumers and jobs read and write a secured topic;
    everything they left is searched.

    Searched are output and logs of driver, workers and JVM (INFO), plans in every form, progress, Spark's
    web pages, the event log, checkpoints, tables, a database, error texts, what the command line says of
    settings typed nearly right, and the reprs of options, readers, writers, partitions, consumers, sinks
    and stores.
    """
    # One key is of a user, and one is not.
    s3.behave(accepted=[KEY])
    storage = {
        "uri": s3.uri("tables"),
        "options": s3.storage_options(),
        "refused": s3.storage_options(REFUSED_KEY),
    }
    with secured_sim(tmp_path) as cluster:
        with Producer(cluster.name_servers, "P", settings=cluster.settings, send_timeout_s=60.0) as producer:
            for queue_id in range(4):
                messages = [Message(topic=TOPIC, body=b"x") for _ in range(MESSAGES // 4)]
                producer.send_batch(messages, MessageQueue(TOPIC, "broker-a", queue_id))
        work = tmp_path / "work"
        work.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "tests.helpers.secrets_driver", str(work)],
            input=json.dumps(
                {"options": {**cluster.options, "securityToken": TOKEN}, "storage": storage}
            ).encode(),
            cwd=REPO,
            env=ENVIRONMENT,
            capture_output=True,
            check=False,
            timeout=800,
        )
    output = done.stdout.decode(errors="replace")

    assert done.returncode == 0, output[-3000:] + done.stderr.decode(errors="replace")[-3000:]
    assert "\ndone\n" in output
    assert b"INFO org.apache.spark" in done.stderr
    for step in STEPS:
        assert step in output
    files = [path for path in work.rglob("*") if path.is_file()]
    assert {path.relative_to(work).parts[0] for path in files} >= LEFT
    searched = {"stdout": done.stdout, "stderr": done.stderr} | {
        str(path.relative_to(work)): path.read_bytes() for path in files
    }
    searched |= {key: s3.get(key) for key in s3.objects()}
    # Their pages are compressed.
    tables = {name: pa.BufferReader(data) for name, data in searched.items() if name.endswith(".parquet")}
    searched |= {
        f"{name} read": str(pq.read_table(data).to_pydict()).encode() for name, data in tables.items()
    }
    assert b"commitInfo" in searched["tables/sink/_delta_log/00000000000000000001.json"]
    found = [
        (name, secret, _around(data, secret))
        for name, data in searched.items()
        for secret in (SECRET, TOKEN, KEY_PASSWORD, USER, KEY, REFUSED_KEY, STORAGE_SECRET)
        if secret.encode() in data
    ]
    assert not found
    keys = [name for name, data in searched.items() if re.search(rb":\d+/[0-9a-f]{64}", data)]
    assert not keys, "the key of a query's own connections"


def _around(data: bytes, secret: str) -> bytes:
    at = data.index(secret.encode())
    return data[max(0, at - 300) : at + 100]
