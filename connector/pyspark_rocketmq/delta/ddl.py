"""Types of a Delta table as Spark's SQL writes them.

``schemaString`` and Spark's ``DataType.json()`` have the same form. In it, a field within a struct has
metadata: comments, ids of column mapping, defaults. Metadata is not part of the type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark_rocketmq.delta.paths import quoted_name

_SQL_NAMES: Final = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMENT: Final = "comment"
NOT_NULL: Final = " NOT NULL"
"""Suffix of a type whose values are never null."""


def quoted_if_needed(name: str) -> str:
    """Return the name as users write it, in backquotes only where they are needed."""
    return name if _PLAIN.fullmatch(name) else quoted_name(name)


def type_ddl(type_: Any, quote: Callable[[str], str] = quoted_if_needed, *, is_sql: bool = False) -> str:
    """Return a type of a schema's JSON as SQL text, for example ``array<bigint>``.

    ``is_sql`` leaves out the NOT NULL of elements, because SQL cannot express arrays and maps without nulls.
    """
    if isinstance(type_, str):
        return _SQL_NAMES.get(type_, type_)

    def part(inner: Any, *, may_be_null: bool) -> str:
        return type_ddl(inner, quote, is_sql=is_sql) + ("" if may_be_null or is_sql else NOT_NULL)

    match type_["type"]:
        case "struct":
            fields = (
                f"{quote(field['name'])}: {type_ddl(field['type'], quote, is_sql=is_sql)}{_not_null(field)}"
                for field in type_["fields"]
            )
            return f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{part(type_['elementType'], may_be_null=type_.get('containsNull', True))}>"
        case "map":
            value = part(type_["valueType"], may_be_null=type_.get("valueContainsNull", True))
            return f"map<{type_ddl(type_['keyType'], quote, is_sql=is_sql)}, {value}>"
        case _:
            return json.dumps(type_, sort_keys=True)


def _not_null(field: Mapping[str, Any]) -> str:
    return "" if field.get("nullable", True) else NOT_NULL


def columns_ddl(schema_json: str, *, as_nullable: bool = False) -> str:
    """Return the columns of a schema's JSON as CREATE TABLE and ADD COLUMNS take them, all names quoted.

    ``as_nullable`` leaves out the NOT NULL of the columns.
    """
    return ", ".join(
        f"{quoted_name(field['name'])} {type_ddl(field['type'], quoted_name, is_sql=True)}"
        + ("" if as_nullable else _not_null(field))
        for field in json.loads(schema_json)["fields"]
    )


def _fields_within(type_: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of all structs in a type, at any depth."""
    if isinstance(type_, str):
        return
    for field in type_.get("fields", ()):
        yield field
        yield from _fields_within(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        if part in type_:
            yield from _fields_within(type_[part])


def metadata_keys_within(type_: Any) -> frozenset[str]:
    """Return the metadata keys of all fields within a type, except comments."""
    return frozenset(
        key for field in _fields_within(type_) for key in field.get("metadata") or {} if key != _COMMENT
    )


def names_within(schema_json: str) -> Iterator[str]:
    """Yield the names of columns and of fields within them, at any depth."""
    return (field["name"] for field in _fields_within(json.loads(schema_json)))
