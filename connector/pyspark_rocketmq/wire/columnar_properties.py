"""Properties of many messages at once: a map column, and KEYS, TAGS and UNIQ_KEY as columns of their own.

How: the properties of all rows are copied into one buffer as ``U+0002 name U+0001 value`` entries, so the two
separators must alternate, and each is followed by a *token*. Then the entries are chosen that Java keeps, the
last of each name, in one of two ways: messages of one producer mostly name the same properties in the same order,
so one row decides for all; otherwise a table with a row per message and a column per distinct name receives the
number of each entry, and numpy's assignment lets the last one win. Everything after that is Arrow's ``take``.
Strings that do not alternate (a value with U+0001, an entry without) raise ``IrregularLayout``.
"""

from __future__ import annotations

from collections.abc import Mapping
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

    tokens: pa.StringArray
    """separator, name, separator, value of each entry."""
    row_offsets: IntArray
    """Where each row's entries begin, and at last their count."""

    @property
    def count(self) -> int:
        return len(self.tokens) // 4

    def names(self) -> pa.StringArray:
        return self.tokens.take(pa.array(np.arange(1, len(self.tokens), 4, dtype=np.int32)))

    def values(self, entry: IntArray) -> pa.StringArray:
        """Values of some entries; null where the number is negative."""
        is_missing = entry < 0
        return self.tokens.take(pa.array(4 * entry + 3, mask=is_missing if is_missing.any() else None))


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The entries that make up the maps, and where to find single properties."""

    map_offsets: IntArray
    map_entries: IntArray
    map_names: pa.StringArray
    by_name: Mapping[str, IntArray]
    """For each distinct name, the entry of every row, or -1."""


def decode_property_columns(data: bytes, starts: IntArray, lengths: IntArray) -> PropertyColumns:
    """Parse the properties strings ``data[start : start + length]``; each start must be above 0.

    Equal to ``decode_properties`` of each row, except that a map's order may differ.

    Raises:
        IrregularLayout: If the scalar codec has to do it.
    """
    if not lengths.any():
        nulls = pa.nulls(len(starts), pa.string())
        return PropertyColumns(pa.array([[]] * len(starts), MAP_TYPE), nulls, nulls, nulls)
    entries = _find_entries(data, starts, lengths)
    chosen = _choose_alike(entries) or _choose_by_table(entries)
    properties = pa.MapArray.from_arrays(
        pa.array(chosen.map_offsets, pa.int32()), chosen.map_names, entries.values(chosen.map_entries)
    )
    nowhere = np.full(len(starts), -1, np.int32)
    columns = (
        entries.values(chosen.by_name.get(name, nowhere)) for name in (names.KEYS, names.TAGS, names.UNIQ_KEY)
    )
    return PropertyColumns(properties, *columns)


def _find_entries(data: bytes, starts: IntArray, lengths: IntArray) -> _Entries:
    """Copy all rows' properties into one buffer and cut it at the separators.

    A row is copied with the byte before it, which then becomes its first separator, and without the
    separator at its end, which old producers write and newer ones may not.
    """
    is_present = lengths > 0
    ends = starts + lengths
    is_ended = is_present & (np.frombuffer(data, np.uint8)[ends - 1] == _PROPERTY_SEPARATOR)
    copied = take_ranges(pa.py_buffer(data), starts - is_present, ends - is_ended, pa.binary())
    _, offsets, buffer = copied.buffers()
    row_at = np.frombuffer(offsets, np.int32)[: len(starts) + 1]
    text = np.frombuffer(buffer, np.uint8)[: row_at[-1]]
    text[row_at[:-1][is_present]] = _PROPERTY_SEPARATOR
    _check_utf8(text, buffer)
    separators = np.flatnonzero(text < _FIRST_OTHER_BYTE)
    _check_alternating(text[separators])
    bounds = np.empty(2 * len(separators) + 1, np.int32)
    bounds[0:-1:2] = separators
    np.add(separators, 1, out=bounds[1::2], casting="unsafe")
    bounds[-1] = len(text)
    tokens = pa.Array.from_buffers(pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), buffer])
    row_offsets = np.searchsorted(separators[0::2], row_at)
    is_empty = bounds[1::2] == bounds[2::2]
    if is_empty.any():
        return _without_empty(tokens, is_empty, row_offsets)
    return _Entries(tokens, row_offsets)


def _check_utf8(text: ByteArray, buffer: pa.Buffer) -> None:
    if text.max() >= 0x80:
        bounds = pa.py_buffer(np.array([0, len(text)], np.int32))
        checked_text(pa.Array.from_buffers(pa.binary(), 1, [None, bounds, buffer]))


def _check_alternating(separators: ByteArray) -> None:
    if (
        len(separators) % 2
        or (separators[0::2] != _PROPERTY_SEPARATOR).any()
        or (separators[1::2] != _NAME_VALUE_SEPARATOR).any()
    ):
        raise IrregularLayout


def _without_empty(tokens: pa.StringArray, is_empty: BoolArray, row_offsets: IntArray) -> _Entries:
    """Leave out the entries Java's parser drops: an empty name or an empty value."""
    is_kept = ~(is_empty[0::2] | is_empty[1::2])
    kept_tokens = np.add.outer(4 * np.flatnonzero(is_kept), np.arange(4)).ravel()
    kept_before = np.concatenate(([0], np.cumsum(is_kept)))
    return _Entries(tokens.take(pa.array(kept_tokens)), kept_before[row_offsets])


def _choose_alike(entries: _Entries) -> _Chosen | None:
    """Choose when every row has the first row's names in the first row's order."""
    rows, width = len(entries.row_offsets) - 1, int(entries.row_offsets[1])
    if not width or entries.count != rows * width:
        return None
    row_entry = np.arange(0, entries.count + 1, width, dtype=np.int32)
    all_names = entries.names()
    if (entries.row_offsets != row_entry).any() or not _is_periodic(all_names, width):
        return None
    last = {name: position for position, name in enumerate(all_names[:width].to_pylist())}
    by_name = {name: row_entry[:-1] + np.int32(position) for name, position in last.items()}
    if len(last) == width:
        return _Chosen(row_entry, np.arange(entries.count, dtype=np.int32), all_names, by_name)
    map_entries = np.add.outer(row_entry[:-1], np.array(list(last.values()), np.int32)).ravel()
    map_names = _repeated(pa.array(list(last), pa.string()), rows)
    return _Chosen(np.arange(0, len(map_entries) + 1, len(last)), map_entries, map_names, by_name)


def _is_periodic(column: pa.StringArray, period: int) -> bool:
    """Whether the column repeats its first ``period`` elements to its end, which is a multiple of them."""
    _, buffer, text_buffer = column.buffers()
    offsets = np.frombuffer(buffer, np.int32)[: len(column) + 1]
    text = np.frombuffer(text_buffer, np.uint8)[: offsets[-1]]
    width = offsets[period]
    if len(text) != len(column) // period * width:
        return False
    starts, first = offsets[:-1].reshape(-1, period), text[:width]
    row_starts = np.arange(0, len(text), width, dtype=np.int32)
    return bool(
        (starts == row_starts[:, None] + starts[0]).all() and (text.reshape(-1, width) == first).all()
    )


def _repeated(column: pa.StringArray, times: int) -> pa.StringArray:
    """The column ``times`` times in a row."""
    _, buffer, text_buffer = column.buffers()
    bounds = np.frombuffer(buffer, np.int32)[: len(column) + 1]
    text = np.tile(np.frombuffer(text_buffer, np.uint8)[: bounds[-1]], times)
    offsets = np.empty(len(column) * times + 1, np.int32)
    offsets[:-1] = np.add.outer(np.arange(0, len(text), bounds[-1], dtype=np.int32), bounds[:-1]).ravel()
    offsets[-1] = len(text)
    return pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def _choose_by_table(entries: _Entries) -> _Chosen:
    """Choose when rows differ in their names."""
    all_names = entries.names()
    encoded = all_names.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    rows, width = len(entries.row_offsets) - 1, len(distinct)
    if rows * width > max(_MIN_TABLE_CELLS, _MAX_TABLE_CELLS_PER_ENTRY * entries.count):
        raise IrregularLayout
    table = np.full(rows * width, -1, np.int32)
    row_cell = np.arange(rows + 1) * width
    cell = np.repeat(row_cell[:-1], np.diff(entries.row_offsets)) + encoded.indices.to_numpy()
    table[cell] = np.arange(entries.count, dtype=np.int32)
    by_name = {name: table[number::width] for number, name in enumerate(distinct)}
    used = np.flatnonzero(table >= 0)
    if len(used) == entries.count:
        return _Chosen(entries.row_offsets, np.arange(entries.count, dtype=np.int32), all_names, by_name)
    map_entries = table[used]
    map_names = all_names.take(pa.array(map_entries))
    return _Chosen(np.searchsorted(used, row_cell), map_entries, map_names, by_name)
