"""The commands about offsets, for a store and a sink on an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_rocketmq.cli.main import main
from pyspark_rocketmq.delta.table import query_rows
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from pyspark_rocketmq.sinks.delta.sink import DeltaSink
from tests.helpers.sink_rows import GROUP, Q0, run_batch
from tests.object_stores.server import COMMIT, KEY, SECRET, Bucket
from tests.sinks.sink_conformance import SCHEMA, rows


@pytest.fixture
def conf(s3: Bucket, tmp_path: Path) -> Path:
    options = s3.storage_options()
    sink = DeltaSink(s3.uri("sink"), storage_options=options)
    sink.prepare(SCHEMA)
    run_batch(sink, {Q0: 3}, rows(Q0, 0, 3))
    DeltaOffsetStore(s3.uri("offsets"), storage_options=options).claim(GROUP, "client", {Q0: 3})
    path = tmp_path / "job.toml"
    lines = [f'"{name}" = "{text}"' for name, text in options.items()]
    head = [f'offsetStore = "{s3.uri("offsets")}"', f'consumerGroup = "{GROUP}"', "[storageSecrets]"]
    path.write_text("\n".join([*head, *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("history",),
        ("reset", "--to", "1", "--dry-run", "--force"),
        ("reset", "--to", "1", "--force", "--sink", "SINK"),
    ],
)
def test_offsets_on_an_object_store_are_shown_and_moved(
    conf: Path, s3: Bucket, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """J1: the options are a table of the job's file."""
    given = [s3.uri("sink") if argument == "SINK" else argument for argument in arguments]
    code = main(["offsets", given[0], "--conf", str(conf), *given[1:]])
    told = capsys.readouterr()

    assert code == 0, told.err
    assert GROUP in told.out


@pytest.mark.parametrize("lost_answers", [0, 1])
def test_a_table_on_an_object_store_is_compacted(
    lost_answers: int, conf: Path, s3: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """J1, J3, H1"""
    options = s3.storage_options()
    sink = DeltaSink(s3.uri("sink"), storage_options=options)
    sink.prepare(SCHEMA)
    run_batch(sink, {Q0: 4}, rows(Q0, 3, 4))
    s3.behave({"where": COMMIT, "times": lost_answers})
    settings = conf.read_text(encoding="utf-8").partition("[storageSecrets]")[2]
    conf.write_text(f'table = "{s3.uri("sink")}"\n[storageSecrets]{settings}', encoding="utf-8")

    assert main(["tables", "compact", "--conf", str(conf)]) == 0

    assert "rewrote 2 files as 1." in capsys.readouterr().out
    table = DeltaTable(s3.uri("sink"), storage_options=options)
    assert len(table.file_uris()) == 1
    assert sorted(query_rows(table, 'SELECT "queueOffset" FROM rows')["queueOffset"].to_pylist()) == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("arguments", [("show",), ("reset", "--to", "1", "--force", "--sink", "SINK")])
def test_storage_that_refuses_is_reported_in_a_sentence(
    conf: Path, s3: Bucket, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """J1: exit code 1, and no secret."""
    s3.behave(accepted=[])
    given = [s3.uri("sink") if argument == "SINK" else argument for argument in arguments]
    code = main(["offsets", given[0], "--conf", str(conf), *given[1:]])
    told = capsys.readouterr()

    assert code == 1
    assert "could not be read" in told.err
    assert KEY not in told.err + told.out
    assert SECRET not in told.err + told.out
