"""Properties of many messages at once: a map column, and KEYS, TAGS and UNIQ_KEY as columns of their own.

How: the properties of all rows are copied into one buffer as ``U+0002 name U+0001 value`` entries, so the two
separators must alternate. The names are dictionary-encoded, and a table with a row per message and a column per
distinct name receives the number of each entry; numpy's assignment lets the last of equal names win, which is
Java's rule. Strings that do not alternate (a value with U+0001, an entry without) raise ``IrregularLayout``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.wire import properties as names
from pyspark_rocketmq.wire.columnar_ranges import (
    BoolArray,
    ByteArray,
    IntArray,
    IrregularLayout,
    checked_text,
    take_ranges,
)

MAP_TYPE: Final = pa.map_(pa.string(), pa.string())
_MAX_TABLE_CELLS_PER_ENTRY = 16
"""More distinct names than this, relative to the entries, would waste memory; the scalar codec takes over."""
_MIN_TABLE_CELLS = 1 << 16

_NAME_VALUE_SEPARATOR = 1
_PROPERTY_SEPARATOR = 2
_FIRST_OTHER_BYTE = 3


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """What the properties of each row give; null where a row lacks the property."""

    properties: pa.MapArray
    keys: pa.StringArray
    tags: pa.StringArray
    unique_keys: pa.StringArray


@dataclass(frozen=True, slots=True)
class _Entries:
    """Names and values of all rows, one behind the other."""

    buffer: pa.Buffer
    row: IntArray
    """The row of each entry, ascending."""
    name_at: IntArray
    name_length: IntArray
    value_at: IntArray
    value_length: IntArray


def decode_property_columns(data: bytes, starts: IntArray, lengths: IntArray) -> PropertyColumns:
    """Parse the properties strings ``data[start : start + length]``; each start must be above 0.

    Equal to ``decode_properties`` of each row, except that a map's order may differ.

    Raises:
        IrregularLayout: If the scalar codec has to do it.
    """
    entries = _find_entries(data, starts, lengths)
    all_names = take_ranges(entries.buffer, entries.name_at, entries.name_length, pa.string())
    encoded = all_names.dictionary_encode()
    table = _entry_table(len(starts), entries, encoded)
    chosen = table[table >= 0]
    if len(chosen) == len(all_names):
        chosen_names = all_names
        chosen = np.arange(len(chosen))
    else:
        chosen_names = encoded.dictionary.take(encoded.indices.take(pa.array(chosen)))
    values = take_ranges(entries.buffer, entries.value_at[chosen], entries.value_length[chosen], pa.string())
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum((table >= 0).sum(axis=1), out=offsets[1:])
    columns = (_column_of(name, table, entries, encoded) for name in (names.KEYS, names.TAGS, names.UNIQ_KEY))
    return PropertyColumns(pa.MapArray.from_arrays(pa.array(offsets), chosen_names, values), *columns)


def _find_entries(data: bytes, starts: IntArray, lengths: IntArray) -> _Entries:
    """Copy all rows' properties into one buffer and find the separators in it.

    A row is copied with the byte before it, which then becomes its first separator, and without the
    separator at its end, which old producers write and newer ones may not.
    """
    source = np.frombuffer(data, np.uint8)
    is_present = lengths > 0
    is_ended = is_present & (source[starts + lengths - 1] == _PROPERTY_SEPARATOR)
    copied = take_ranges(
        pa.py_buffer(data), starts - is_present, lengths + is_present - is_ended, pa.binary()
    )
    row_offsets = np.frombuffer(copied.buffers()[1], np.int32)[: len(starts) + 1]
    text = np.array(np.frombuffer(copied.buffers()[2], np.uint8)[: row_offsets[-1]])
    text[row_offsets[:-1][is_present]] = _PROPERTY_SEPARATOR
    _check_utf8(text)
    separators = np.flatnonzero(text < _FIRST_OTHER_BYTE)
    _check_alternating(text, separators)
    entry_at, value_separators = separators[0::2], separators[1::2]
    entry_end = np.append(entry_at[1:], len(text))
    entry_offsets = np.searchsorted(entry_at, row_offsets)
    row = np.repeat(np.arange(len(starts)), np.diff(entry_offsets))
    entries = _Entries(
        pa.py_buffer(text),
        row,
        entry_at + 1,
        value_separators - entry_at - 1,
        value_separators + 1,
        entry_end - value_separators - 1,
    )
    return _without_empty(entries)


def _check_utf8(text: ByteArray) -> None:
    if len(text) and text.max() >= 0x80:
        whole = [None, pa.py_buffer(np.array([0, len(text)], np.int32)), pa.py_buffer(text)]
        checked_text(pa.Array.from_buffers(pa.binary(), 1, whole))


def _check_alternating(text: ByteArray, separators: IntArray) -> None:
    found = text[separators]
    if (
        len(found) % 2
        or (found[0::2] != _PROPERTY_SEPARATOR).any()
        or (found[1::2] != _NAME_VALUE_SEPARATOR).any()
    ):
        raise IrregularLayout


def _without_empty(entries: _Entries) -> _Entries:
    """Drop the entries Java's parser drops: an empty name or an empty value."""
    kept: BoolArray = (entries.name_length > 0) & (entries.value_length > 0)
    if kept.all():
        return entries
    return _Entries(
        entries.buffer,
        entries.row[kept],
        entries.name_at[kept],
        entries.name_length[kept],
        entries.value_at[kept],
        entries.value_length[kept],
    )


def _entry_table(rows: int, entries: _Entries, encoded: pa.DictionaryArray) -> IntArray:
    """For each row and distinct name, the number of the last such entry, or -1."""
    width = len(encoded.dictionary)
    if rows * width > max(_MIN_TABLE_CELLS, _MAX_TABLE_CELLS_PER_ENTRY * len(encoded)):
        raise IrregularLayout
    table = np.full(rows * width, -1, np.int32)
    table[entries.row * width + encoded.indices.to_numpy()] = np.arange(len(encoded), dtype=np.int32)
    return table.reshape(rows, width)


def _column_of(name: str, table: IntArray, entries: _Entries, encoded: pa.DictionaryArray) -> pa.Array:
    number = encoded.dictionary.index(name).as_py()
    if number < 0:
        return pa.nulls(len(table), pa.string())
    entry = table[:, number]
    valid = entry >= 0
    lengths = np.where(valid, entries.value_length[entry], 0)
    return take_ranges(entries.buffer, entries.value_at[entry], lengths, pa.string(), valid)
