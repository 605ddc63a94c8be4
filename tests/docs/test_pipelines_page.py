"""The page about declarative pipelines, run by ``spark-pipelines``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from broker_sim.cluster import SimCluster
from tests.docs.pages import blocks
from tests.helpers.driver_process import ENVIRONMENT

PAGE = "docs/how-to/pipelines.md"
_TIMEOUT_S = 600.0
_MESSAGES = 6
_OPERATIONS = {"insert": 4, "delete": 2, "update": 1}
"""Changes of the tutorial's six messages, of which one changes a key."""

pytestmark = [pytest.mark.sim, pytest.mark.driver, pytest.mark.long, pytest.mark.timeout(1_800)]


def _block(page: str, language: str) -> str:
    return next(block.text for block in blocks(language) if block.page == page)


def _run(folder: Path, *command: str) -> None:
    # With SPARK_TESTING the server of Spark Connect listens on a free port; conf/ is empty.
    environment = {**os.environ, **ENVIRONMENT, "SPARK_TESTING": "1", "SPARK_CONF_DIR": str(folder / "conf")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def _rows(folder: Path, table: str) -> list[dict[str, object]]:
    return list(pq.read_table(folder / "spark-warehouse" / table).to_pylist())


def test_a_pipeline_reads_topics_in_a_table_and_in_an_append_flow(tmp_path: Path) -> None:
    """K6: each message once; the tutorial sends each change twice."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "transformations").mkdir()
    specification = _block(PAGE, "yaml").replace("/tmp/orders-pipeline", str(tmp_path / "storage"))
    (tmp_path / "spark-pipeline.yml").write_text(specification)
    tool, *words = shlex.split(_block(PAGE, "bash").splitlines()[-1])
    command = [str(Path(sys.executable).parent / tool), *words]
    with SimCluster() as cluster:
        code = _block(PAGE, "python").replace("127.0.0.1:9876", cluster.name_servers)
        (tmp_path / "transformations" / "orders.py").write_text(code)
        (tmp_path / "send.py").write_text(_block("docs/change-data.md", "python"))
        _run(tmp_path, sys.executable, "send.py", cluster.name_servers, "all")
        _run(tmp_path, *command)

    assert len(_rows(tmp_path, "order_messages")) == 2 * _MESSAGES
    found = Counter(row["op"] for row in _rows(tmp_path, "order_changes"))
    assert found == {name: 2 * count for name, count in _OPERATIONS.items()}
    assert {row["op"]: row["count"] for row in _rows(tmp_path, "operations")} == found
