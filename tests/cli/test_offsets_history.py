"""Jobs ``offsets history`` and ``offsets diff``: what happened to a group."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pyspark_rocketmq.cli.offsets.history import Moments, show_diff, show_history
from pyspark_rocketmq.cli.offsets.moves import AtVersion
from pyspark_rocketmq.cli.options import OffsetsHistorySettings
from pyspark_rocketmq.cli.output import OutputForm
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.errors import OffsetError
from pyspark_rocketmq.model import MessageQueue, QueueState
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.offsets.store import QueueCommit, new_owner

A0, A1 = (MessageQueue("orders", "broker-a", number) for number in (0, 1))


@pytest.fixture
def store(tmp_path: Path) -> DeltaOffsetStore:
    """Versions: 2 claimed, 3 another group, 4 a batch, 5 reset."""
    store = DeltaOffsetStore(tmp_path / "offsets")
    store.claim("etl", new_owner("me"), {A0: 0, A1: 0})
    store.claim("other", "you", {A0: 3})
    store.commit("etl", [QueueCommit(queue=A0, state=QueueState(8, 1))], query_id="q-1", batch_id=7)
    store.reset("etl", {A1: 5})
    return store


def run(job: Callable[..., object], store: DeltaOffsetStore, *arguments: object) -> Any:
    output = io.StringIO()
    settings = OffsetsHistorySettings(offset_store=store.spec, consumer_group="etl")
    job(settings, *arguments, OutputForm.JSON, Console(file=output, width=200))
    return json.loads(output.getvalue())


def test_the_history_of_a_group_is_its_own_newest_first(store: DeltaOffsetStore) -> None:
    """F5: who did what, and to which version one can go back."""
    records = run(show_history, store, 20)

    assert [(record["version"], record["action"]) for record in records] == [
        (5, "reset"), (4, "commit of batch 7 of query q-1"), (2, "claim by me"),
    ]  # fmt: skip
    assert len(run(show_history, store, 1)) == 1


def test_a_difference_is_of_those_queues_that_changed(store: DeltaOffsetStore) -> None:
    """F5"""
    since_claim = run(show_diff, store, Moments(AtVersion(2), None))
    between = run(show_diff, store, Moments(AtVersion(2), AtVersion(4)))

    assert [(record["queueId"], record["from"], record["to"], record["moved"]) for record in since_claim] == [
        (0, 0, 8, 8), (1, 0, 5, 5),
    ]  # fmt: skip
    assert [(record["queueId"], record["epochFrom"], record["epochTo"]) for record in between] == [(0, 1, 1)]


def test_groups_are_compared_as_they_are_now(store: DeltaOffsetStore) -> None:
    """F5: before and after a clone."""
    records = run(show_diff, store, "other")

    assert [(record["queueId"], record["from"], record["to"]) for record in records] == [
        (0, 8, 3),
        (1, 5, None),
    ]


def test_missing_versions_and_tables_are_reported(store: DeltaOffsetStore, tmp_path: Path) -> None:
    with pytest.raises(OffsetError, match="no offsets of group etl at version 1"):
        run(show_diff, store, Moments(AtVersion(1), None))
    with pytest.raises(JobFailed, match=r"There are no offsets at .*/none: correct option 'offsetStore'"):
        run(show_history, DeltaOffsetStore(tmp_path / "none"), 5)
    assert not (tmp_path / "none").exists()
