"""Which tables the sink refuses, as far as this can be said without a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyspark_rocketmq.delta.features import refused_features
from pyspark_rocketmq.delta.table import Column, TableForm, parse_columns, writer_features
from pyspark_rocketmq.sinks.delta.rules import POSITION_TYPES, SinkCommit, cannot_take_files


def form(
    *,
    features: Sequence[str] = ("appendOnly", "invariants"),
    configuration: dict[str, str] | None = None,
    **column_metadata: Any,
) -> TableForm:
    columns = [Column(name=name, type=type_, metadata={}) for name, type_ in POSITION_TYPES.items()]
    columns += [Column(name=name, type="long", metadata=data) for name, data in column_metadata.items()]
    return TableForm(
        columns=tuple(columns),
        partition_by=(),
        configuration=configuration or {},
        features=frozenset(features),
    )


@pytest.mark.parametrize(
    "feature",
    [
        "allowColumnDefaults",
        "clustering",
        "domainMetadata",
        "icebergCompatV2",
        "identityColumns",
        "inCommitTimestamp",
        "rowTracking",
        "typeWidening",
        "vacuumProtocolCheck",
        "somethingNew",
    ],
)
def test_a_feature_that_delta_rs_must_not_write_is_named(feature: str) -> None:
    assert refused_features(form(features=["appendOnly", feature])) == (feature,)


@pytest.mark.parametrize(
    "feature",
    ["appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint"],
)
def test_a_feature_that_does_not_touch_added_files_is_allowed(feature: str) -> None:
    assert refused_features(form(features=[feature])) == ()


@pytest.mark.parametrize("feature", ["checkConstraints", "columnMapping", "generatedColumns", "invariants"])
def test_a_feature_that_nothing_uses_is_allowed(feature: str) -> None:
    assert refused_features(form(features=[feature], plain={})) == ()


@pytest.mark.parametrize(
    ("used", "name"),
    [
        ({"configuration": {"delta.constraints.positive": "x > 0"}}, "CHECK constraint positive"),
        ({"configuration": {"delta.columnMapping.mode": "id"}}, "columnMapping (delta.columnMapping.mode)"),
        ({"day": {"delta.generationExpression": "x"}}, "generated column day"),
        ({"id": {"delta.identity.start": 1}}, "identity column id"),
        ({"id": {"delta.invariants": "{}"}}, "invariant of column id"),
    ],
)
def test_a_feature_in_use_is_named_with_what_uses_it(used: dict[str, Any], name: str) -> None:
    assert refused_features(form(**used)) == (name,)


def test_column_mapping_switched_off_is_allowed() -> None:
    assert refused_features(form(configuration={"delta.columnMapping.mode": "none"})) == ()


def test_the_refusal_names_every_feature_and_a_remedy() -> None:
    table = form(features=["rowTracking", "clustering"], configuration={"delta.constraints.c": "x"})

    text = str(cannot_take_files("/lake/orders", refused_features(table), "there is no session"))

    assert "cannot add files to the Delta table /lake/orders" in text
    assert "clustering, rowTracking, CHECK constraint c" in text
    assert "Spark's own writer could, but cannot be used, because there is no session" in text
    assert "DROP FEATURE" in text


@pytest.mark.parametrize(
    ("version", "features"),
    [
        (1, set()),
        (2, {"appendOnly", "invariants"}),
        (4, {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}),
    ],
)
def test_old_writer_versions_stand_for_features(version: int, features: set[str]) -> None:
    assert writer_features(version, None, None) == features


def test_writer_version_6_implies_identity_columns_and_5_column_mapping() -> None:
    assert writer_features(6, None, None) - writer_features(5, None, None) == {"identityColumns"}
    assert "columnMapping" in writer_features(5, None, None)


def test_writer_version_7_names_its_features() -> None:
    assert writer_features(7, ["appendOnly"], ["deletionVectors"]) == {"appendOnly", "deletionVectors"}


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("__CHAR_VARCHAR_TYPE_STRING", "CHAR or VARCHAR column"),
        ("delta.invariants", "invariant of column"),
    ],
)
def test_what_delta_checks_of_values_is_left_to_its_own_writer(key: str, title: str) -> None:
    """H4, J5: a CHAR is padded, and a VARCHAR's length is looked at, by whoever writes the rows."""
    assert refused_features(form(v={key: "varchar(3)"})) == (f"{title} v",)

    inner = {"type": "struct", "fields": [{"name": "a", "type": "string", "metadata": {key: "varchar(3)"}}]}
    schema = {"type": "struct", "fields": [{"name": "s", "type": inner}]}
    nested = replace(form(), columns=parse_columns(json.dumps(schema)))
    assert refused_features(nested) == (f"{title} s",)


OURS = {"operation": "WRITE", **SinkCommit("g", {}, "id-1").metadata()}


def test_a_commit_is_known_by_its_id() -> None:
    assert SinkCommit("g", {}, "id-1").is_in(OURS)
    assert not SinkCommit("g", {}, "id-2").is_in(OURS)
    assert not SinkCommit("g", {}, "id-1").is_in({"operation": "WRITE"})
