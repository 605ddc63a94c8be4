"""Checks of JSON strings for three losses that ``from_json`` does not report.

1. Of several fields with one name, ``from_json`` keeps only the last.
2. It drops the digits of a time after the microseconds.
3. It drops everything that follows a date.

A quick search finds the few bodies that may be affected. Only these are parsed a second time, into strings,
and then checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import and_, or_
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TEXTS: Final[Any] = MapType(StringType(), StringType())
"""A JSON object with its values as strings; ``from_json`` accepts this type, but its type hints do not."""
_MAY_BE_TOO_FINE: Final = r"[.,][0-9]{7}"
_TOO_FINE: Final = r"[.,][0-9]{6}[0-9]*[1-9]"
"""A fraction of a second with a digit other than 0 after the microseconds."""
_TIME_BEHIND: Final = r"-[0-9]{1,2}(T|\s+[^\s\"])"
"""A time of day, or anything else, after a date."""
_UNQUOTED: Final = "allowunquotedfieldnames"
_DATE_FORMAT: Final = "dateformat"


def has_fields_once(text: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    """Return the condition that no object of ``text`` has a field of ``schema`` twice.

    Of two such fields, ``from_json`` would use only the last.
    """
    names = sorted(set(_names(schema)))
    if not names or options.get(_key_in(options, _UNQUOTED), "").lower() == "true":
        may_be_twice = sf.lit(True)
    else:
        # Other ways to write a key: in single quotes, or with an escape.
        others = (sf.contains(text, sf.lit(mark)) for mark in ("'", "\\u", "\\/"))
        may_be_twice = reduce(or_, (*(_is_twice(text, name) for name in names), *others))
    return sf.when(may_be_twice, _fields_once(text, schema, _parsing(options))).otherwise(sf.lit(True))


def has_whole_times(text: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    """Return the condition that times have at most microseconds, and nothing follows a date.

    If it is not met, ``from_json`` drops the further digits, or the time of day. With option ``dateFormat``
    dates are not checked here, because Spark is then strict about them.
    """
    finer: dict[type[DataType], str] = dict.fromkeys((TimestampType, TimestampNTZType), _TOO_FINE)
    signs: dict[type[DataType], str] = dict.fromkeys(finer, _MAY_BE_TOO_FINE)
    if _key_in(options, _DATE_FORMAT) not in options:
        finer[DateType] = signs[DateType] = _TIME_BEHIND
    found = {signs[kind] for kind in _leaves(schema) if kind in signs}
    if not found:
        return sf.lit(True)
    texts = _texts_of(schema, finer)
    assert isinstance(texts, StructType)

    def check(value: Column) -> Column:
        return _whole(value, schema, texts, finer)

    parsed = sf.from_json(text, texts, _parsing(options))
    is_suspicious = reduce(or_, (text.rlike(sign) for sign in sorted(found)))
    return sf.when(is_suspicious, _let(parsed, check)).otherwise(sf.lit(True))


def _key_in(options: Mapping[str, str], lower: str) -> str:
    return next((key for key in options if key.lower() == lower), lower)


def _parsing(options: Mapping[str, str]) -> dict[str, str]:
    return {**options, "mode": "PERMISSIVE"}


def _let(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return ``use(value)``, so that Spark evaluates ``value`` once even if ``use`` has it several times."""
    return sf.transform(sf.array(value), use)[0]


def _is_twice(text: Column, name: str) -> Column:
    quoted = sf.lit(json.dumps(name, ensure_ascii=False))
    return sf.position(quoted, text, sf.position(quoted, text) + sf.lit(1)) > 0


def _names(kind: DataType) -> Iterator[str]:
    """Yield the names of all fields of structs within ``kind``."""
    match kind:
        case StructType():
            for field in kind.fields:
                yield field.name
                yield from _names(field.dataType)
        case ArrayType():
            yield from _names(kind.elementType)
        case MapType():
            yield from _names(kind.valueType)
        case _:
            pass


def _leaves(kind: DataType) -> Iterator[type[DataType]]:
    match kind:
        case StructType():
            for field in kind.fields:
                yield from _leaves(field.dataType)
        case ArrayType():
            yield from _leaves(kind.elementType)
        case MapType():
            yield from _leaves(kind.valueType)
        case _:
            yield type(kind)


def _fields_once(text: Column, kind: DataType, options: Mapping[str, str]) -> Column:
    """Return the condition that a value of ``kind``, as JSON text, has no field twice; true for null."""
    match kind:
        case StructType():
            names = sf.array(*(sf.lit(name) for name in kind.fieldNames()))

            def check(value: Column) -> Column:
                keys = sf.filter(sf.map_keys(value), lambda key: sf.array_contains(names, key))
                parts = [
                    _fields_once(value[field.name], field.dataType, options)
                    for field in kind.fields
                    if any(_names(field.dataType))
                ]
                return reduce(and_, parts, sf.size(sf.array_distinct(keys)) == sf.size(keys))

            is_each_once = _let(sf.from_json(text, _TEXTS, options), check)
        case ArrayType():
            items = sf.from_json(text, ArrayType(StringType()), options)
            is_each_once = sf.forall(items, lambda item: _fields_once(item, kind.elementType, options))
        case MapType():
            items = sf.map_values(sf.from_json(text, _TEXTS, options))
            is_each_once = sf.forall(items, lambda item: _fields_once(item, kind.valueType, options))
        case _:
            return sf.lit(True)
    return sf.coalesce(is_each_once, sf.lit(True))


def _texts_of(kind: DataType, finer: Mapping[type[DataType], str]) -> DataType | None:
    """Return ``kind`` reduced to its times and dates, each with the type string; None if it has none.

    The keys of ``finer`` are the types of these times and dates; its values are not used here.
    """
    match kind:
        case StructType():
            fields = [(field.name, _texts_of(field.dataType, finer)) for field in kind.fields]
            kept = [StructField(name, texts) for name, texts in fields if texts is not None]
            return StructType(kept) if kept else None
        case ArrayType():
            texts = _texts_of(kind.elementType, finer)
            return None if texts is None else ArrayType(texts)
        case MapType():
            texts = _texts_of(kind.valueType, finer)
            return None if texts is None else MapType(StringType(), texts)
        case _:
            return StringType() if type(kind) in finer else None


def _whole(value: Column, kind: DataType, texts: DataType, finer: Mapping[type[DataType], str]) -> Column:
    match kind, texts:
        case StructType(), StructType():
            parts = (
                _whole(value[field.name], kind[field.name].dataType, field.dataType, finer)
                for field in texts.fields
            )
            is_whole = reduce(and_, parts)
        case ArrayType(), ArrayType():
            inner, of_texts = kind.elementType, texts.elementType
            is_whole = sf.forall(value, lambda item: _whole(item, inner, of_texts, finer))
        case MapType(), MapType():
            inner, of_texts = kind.valueType, texts.valueType
            is_whole = sf.forall(sf.map_values(value), lambda item: _whole(item, inner, of_texts, finer))
        case _:
            is_whole = ~value.rlike(finer[type(kind)])
    return sf.coalesce(is_whole, sf.lit(True))
