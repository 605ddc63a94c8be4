"""The notebooks run from their first cell to the last, on the simulator they start,
and show what their texts say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.client.producer.producer import Producer
from tests.docs.pages import ROOT
from tests.helpers.unactivated import run_unactivated
from tests.helpers.wait import PATIENCE_S

pytestmark = pytest.mark.spark

FOLDER = ROOT / "jobs" / "notebooks"


def cells(name: str) -> list[str]:
    notebook = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every cell in one namespace, as a kernel does; what the namespace holds then."""
    monkeypatch.delenv("NAME_SERVERS", raising=False)
    monkeypatch.setenv("FOLDER", str(folder))
    defaults = Producer.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "send_timeout_s", PATIENCE_S)
    namespace: dict[str, Any] = {"__name__": "notebook"}
    try:
        for number, source in enumerate(cells(name)):
            exec(compile(source, f"{name}, cell {number}", "exec"), namespace)
    except BaseException:
        if "simulator" in namespace:
            namespace["simulator"].stop()
        raise
    return namespace


@pytest.mark.parametrize("notebook", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_without_what_a_run_leaves(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_all_notebooks_make_their_session_alike() -> None:
    made = {
        next(cell for cell in cells(path.name) if "getActiveSession" in cell)
        for path in FOLDER.glob("*.ipynb")
    }

    assert len(made) == 1


@pytest.mark.long
@pytest.mark.driver
def test_first_steps_with_a_cluster_need_no_checkout_and_no_activated_environment(tmp_path: Path) -> None:
    """Kernel and workers have what pip installed, and the session has Delta."""
    with SimCluster(brokers=1) as cluster:
        variables = {"NAME_SERVERS": cluster.name_servers, "FOLDER": str(tmp_path / "lake")}

        printed = run_unactivated("\n".join(cells("1_first_steps.ipynb")), tmp_path, variables)

    assert "200 messages in 4 queues" in printed
    assert "200 rows" in printed


def test_first_steps(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("1_first_steps.ipynb", tmp_path, monkeypatch)
    assert (shown["sent"], shown["found"], shown["rows"]) == (200, 200, 200)


@pytest.mark.long
def test_orders_with_failures(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("2_orders_with_failures.ipynb", tmp_path, monkeypatch)
    assert shown["rows"] == shown["sent"] - 1
    assert [(row.order_id, row.step) for row in shown["third"]] == [("order-003", "paid")]
    assert shown["broken"] == ["created", "paid", "sent"]
    assert [(row.keys, row.text) for row in shown["dead_letters"]] == [("order-005", "packed")]


@pytest.mark.long
def test_replay_and_time_travel(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("3_replay_and_time_travel.ipynb", tmp_path, monkeypatch)
    assert shown["steps"] == shown["per_step"] == {"created": 40, "paid": 40, "packed": 40, "sent": 40}
    assert shown["versions"].count() > 1


@pytest.mark.long
def test_operations(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("4_operations.ipynb", tmp_path, monkeypatch)
    assert (shown["culprit"]["keys"], shown["culprit"]["tags"]) == ("order-011", "packed")
    assert shown["lag"][shown["queue"]] > 0
    assert shown["rows"] == shown["sent"] - 1
