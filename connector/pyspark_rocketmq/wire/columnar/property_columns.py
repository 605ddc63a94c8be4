"""Decode the properties of many messages together, into a map column and into columns of single properties.

The properties of all rows are copied into one buffer as ``U+0002 name U+0001 value`` entries and cut at the
separators into *tokens*, alternately ``U+0002 name U+0001`` and the value. A row's names with their
separators are its *layout*. Messages of one producer usually have the same layout, as one comparison of the
whole buffer shows; otherwise Arrow finds the few distinct layouts. Python looks only at layouts: which names
there are, and which entry of each name Java keeps (the last). The rest is Arrow's ``take`` of values. Usually
each value also has the same length in every row; then the rows are a byte matrix, and values are columns of
it. Strings whose separators do not alternate (a value with U+0001, an entry without it) raise
``IrregularLayout``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.wire.columnar.arrays import (
    BoolArray,
    ByteArray,
    ByteMatrix,
    IntArray,
    IrregularLayout,
    checked_text,
    repeated_offsets,
    repeated_texts,
    require_all,
    take_ranges,
)
from pyspark_rocketmq.wire.columnar.schema import MAP_TYPE

_NAME_VALUE_SEPARATOR = 1
_PROPERTY_SEPARATOR = 2
_FIRST_OTHER_BYTE = 3
_FIRST_BEYOND_ASCII = 0x80
_PIECE: Final = 1 << 17
"""Bytes searched at a time, which stay in the processor's cache."""
_LAYOUT = re.compile(rb"(?:\x02[^\x00-\x02]*\x01)*")

_Kept = Mapping[str, int]
"""Index of the entry that has a property's value in rows of one layout, by property name."""


class PropertyColumns:
    """The properties of rows, equal to ``decode_properties`` of each row except for the order in maps."""

    def __init__(self, data: bytes | bytearray, starts: IntArray, lengths: IntArray) -> None:
        """Parse ``data[start : start + length]`` of each row.

        Each start must be above 0, because the byte before it is copied, too.

        Raises:
            IrregularLayout: If the messages must be decoded one by one.
        """
        self._rows = len(starts)
        self._entries: _Aligned | _Alike | _Various | None = None
        if lengths.any():
            if (lengths == lengths[0]).all():
                self._entries = _aligned(ByteMatrix.gathered(data, starts, int(lengths[0])))
            self._entries = self._entries or _of_any_length(_copy_text(data, starts, lengths))

    def column(self, name: str) -> pa.StringArray:
        """Return the values of one property; null in rows without it."""
        column = self._entries.column(name) if self._entries else None
        return pa.nulls(self._rows, pa.string()) if column is None else column

    def maps(self) -> pa.MapArray:
        """Return all properties as a map column."""
        if self._entries is None:
            return pa.array([[]] * self._rows, MAP_TYPE)
        offsets, keys, values = self._entries.maps()
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of all rows, in turn: a name between its two separators, and its value."""

    tokens: pa.StringArray
    row_at: IntArray
    """The number of each row's first entry, and at the end the number of all entries."""

    def take(self, numbers: IntArray, is_missing: BoolArray | None = None) -> pa.StringArray:
        """Return the tokens with these numbers; null where ``is_missing``."""
        return self.tokens.take(pa.array(numbers, mask=is_missing))


@dataclass(frozen=True, slots=True)
class _Text:
    """The properties of all rows in one buffer, each entry with both separators."""

    buffer: pa.Buffer
    row_at: IntArray
    """Where each row begins, and at the end where the text ends; 32 bits each."""

    def as_bytes(self) -> ByteArray:
        return np.frombuffer(self.buffer, np.uint8)[: self.row_at[-1]]


def _copy_text(data: bytes | bytearray, starts: IntArray, lengths: IntArray) -> _Text:
    """Copy all rows' properties into one buffer.

    Each row is copied together with the byte before it, and this byte is replaced by a separator. So every
    entry begins with a separator. A separator at the row's end, which only old producers always write, is not
    copied.
    """
    ends = starts + lengths
    is_ended = np.frombuffer(data, np.uint8)[ends - 1] == _PROPERTY_SEPARATOR
    is_present = lengths > 0
    all_present = bool(is_present.all())
    if not all_present:
        is_ended &= is_present
    copied = take_ranges(pa.py_buffer(data), starts - is_present, ends - is_ended, pa.binary())
    _, offsets, buffer = copied.buffers()
    text = _Text(buffer, np.frombuffer(offsets, np.int32)[: len(starts) + 1])
    rows_at = text.row_at[:-1]
    text.as_bytes()[rows_at if all_present else rows_at[is_present]] = _PROPERTY_SEPARATOR
    _check_utf8(text.as_bytes(), buffer)
    return text


def _find_tokens(copied: _Text) -> _Tokens:
    """Cut the text at its separators into names and values; leave out entries with an empty value.

    Raises:
        IrregularLayout: If the separators do not alternate.
    """
    text = copied.as_bytes()
    bounds = _find_separators(text)
    if len(bounds) % 2 == 0:
        raise IrregularLayout
    names_at, values_at, values_end = bounds[:-1:2], bounds[1::2], bounds[2::2]
    values_at += 1
    tokens = pa.Array.from_buffers(pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), copied.buffer])
    row_at = _first_entries(names_at, copied.row_at)
    is_filled = values_at != values_end
    if is_filled.all():
        return _Tokens(tokens, row_at)
    # Entries with empty values are dropped below, so check the separators of all entries here.
    require_all(text[names_at] == _PROPERTY_SEPARATOR)
    require_all(text[values_at - 1] == _NAME_VALUE_SEPARATOR)
    return _without_empty(tokens, is_filled, row_at)


def _find_separators(text: ByteArray) -> IntArray:
    """Return the positions of all separators, and the text's end; search in pieces that stay in the cache."""
    pieces = []
    for at in range(0, len(text), _PIECE):
        piece = np.flatnonzero(text[at : at + _PIECE] < _FIRST_OTHER_BYTE).astype(np.int32)
        if at:
            piece += at
        pieces.append(piece)
    pieces.append(np.array([len(text)], np.int32))
    return np.concatenate(pieces)


def _check_utf8(text: ByteArray, buffer: pa.Buffer) -> None:
    if text.max() >= _FIRST_BEYOND_ASCII:
        bounds = pa.py_buffer(np.array([0, len(text)], np.int32))
        checked_text(pa.Array.from_buffers(pa.binary(), 1, [None, bounds, buffer]))


def _first_entries(names_at: IntArray, row_at: IntArray) -> IntArray:
    """Return the number of entries before each row; first try whether all rows have equally many."""
    rows = len(row_at) - 1
    width, rest = divmod(len(names_at), rows)
    if not rest and (names_at[::width] == row_at[:-1]).all():
        return np.arange(0, width * rows + 1, width)
    return np.searchsorted(names_at, row_at)


def _without_empty(tokens: pa.StringArray, is_filled: BoolArray, row_at: IntArray) -> _Tokens:
    """Leave out the entries with an empty value, which Java's parser drops."""
    kept = np.add.outer(2 * np.flatnonzero(is_filled), np.arange(2)).ravel()
    kept_before = np.concatenate(([0], np.cumsum(is_filled)))
    return _Tokens(tokens.take(pa.array(kept)), kept_before[row_at])


def _kept(layout: bytes) -> _Kept:
    """Return the index of each name's entry in a row of this layout, by name.

    If a name occurs several times, its last entry counts. Empty names are left out. Java's parser does both.
    """
    if not _LAYOUT.fullmatch(layout):
        raise IrregularLayout
    entries = layout[1:-1].decode().split("\x01\x02") if layout else []
    return {name: number for number, name in enumerate(entries) if name}


@dataclass(frozen=True, slots=True)
class _Alike:
    """Rows that all have the same property names in the same order, with ``width`` entries each."""

    tokens: _Tokens
    rows: int
    width: int
    kept: _Kept

    def column(self, name: str) -> pa.StringArray | None:
        entry = self.kept.get(name)
        if entry is None:
            return None
        return self.tokens.take(self._value_numbers(entry))

    def maps(self) -> tuple[IntArray, pa.StringArray, pa.StringArray]:
        """Return the offsets, keys and values of a map column with all properties."""
        kept = len(self.kept)
        numbers = np.arange(1, 2 * self.rows * self.width, 2, dtype=np.int32)
        if kept != self.width:
            numbers = np.empty(self.rows * kept, np.int32)
            for place, entry in enumerate(self.kept.values()):
                numbers[place::kept] = self._value_numbers(entry)
        offsets = np.arange(0, kept * self.rows + 1, kept, dtype=np.int32)
        return offsets, repeated_texts(list(self.kept), self.rows), self.tokens.take(numbers)

    def _value_numbers(self, entry: int) -> IntArray:
        """Return the token numbers of all rows' values of ``entry``."""
        return np.arange(2 * entry + 1, 2 * self.rows * self.width, 2 * self.width, dtype=np.int32)


def _alike(tokens: _Tokens, names: pa.StringArray) -> _Alike | None:
    """Return the rows if all have the same names in the same order.

    Return None if they do not, or if all names are empty.
    """
    rows, width = len(tokens.row_at) - 1, int(tokens.row_at[1])
    if len(names) != rows * width or (tokens.row_at[1:] - tokens.row_at[:-1] != width).any():
        return None
    layout = "".join(names[:width].to_pylist()).encode()
    _, offsets, buffer = names.buffers()
    length = int(np.frombuffer(offsets, np.int32)[len(names)])
    if not (kept := _kept(layout)) or buffer.slice(0, length) != pa.py_buffer(layout * rows):
        return None
    return _Alike(tokens, rows, width, kept)


@dataclass(frozen=True, slots=True)
class _Aligned:
    """Rows with the same names in the same order, in which each value has one length in all rows."""

    table: ByteMatrix
    values: Sequence[tuple[int, int]]
    """Begin and end of the columns of each entry's value."""
    kept: _Kept

    def column(self, name: str) -> pa.StringArray | None:
        entry = self.kept.get(name)
        return None if entry is None else self.table.texts([self.values[entry]])

    def maps(self) -> tuple[IntArray, pa.StringArray, pa.StringArray]:
        """Return the offsets, keys and values of a map column with all properties."""
        rows, kept = len(self.table.rows), list(self.kept)
        values = self.table.texts([self.values[entry] for entry in self.kept.values()])
        return repeated_offsets((len(kept),), rows), repeated_texts(kept, rows), values


def _aligned(table: ByteMatrix) -> _Aligned | None:
    """Return the rows if they share one layout and all value lengths.

    Return None if they do not, or if there is an empty value or a byte that is not ASCII.
    """
    if table.lowest[-1] == table.highest[-1] == _PROPERTY_SEPARATOR:
        # Old producers write a separator at the end; newer ones may not.
        table = table.before(len(table.lowest) - 1)
    first = table.rows[0]
    bounds = [-1, *np.flatnonzero(table.lowest < _FIRST_OTHER_BYTE).tolist(), len(first)]
    if len(bounds) % 2 == 0 or table.highest.max() >= _FIRST_BEYOND_ASCII:
        return None
    names = list(zip(bounds[:-1:2], bounds[1::2], strict=True))
    values = [(begin + 1, end) for begin, end in zip(bounds[1::2], bounds[2::2], strict=True)]
    if any(begin == end for begin, end in values) or not all(
        table.is_same(max(begin, 0), end + 1) for begin, end in names
    ):
        return None
    layout = b"\2" + b"".join(first[max(begin, 0) : end + 1].tobytes() for begin, end in names)
    kept = _kept(layout)
    return _Aligned(table, values, kept) if kept else None


def _of_any_length(text: _Text) -> _Alike | _Various:
    tokens = _find_tokens(text)
    names = tokens.take(np.arange(0, len(tokens.tokens), 2, dtype=np.int32))
    return _alike(tokens, names) or _various(tokens, names)


@dataclass(frozen=True, slots=True)
class _Various:
    """Rows with different property names, or names in a different order; each such order is a layout."""

    tokens: _Tokens
    layout_of: IntArray
    """The index of each row's layout in ``layouts``."""
    layouts: Sequence[_Kept]

    def column(self, name: str) -> pa.StringArray | None:
        entry = np.array([kept.get(name, -1) for kept in self.layouts], np.int32)[self.layout_of]
        is_missing = entry < 0
        numbers = 2 * (self.tokens.row_at[:-1] + entry) + 1
        return self.tokens.take(numbers, is_missing if is_missing.any() else None)

    def maps(self) -> tuple[IntArray, pa.StringArray, pa.StringArray]:
        """Return the offsets, keys and values of a map column with all properties."""
        sizes = np.array(list(map(len, self.layouts)))
        names = [name for kept in self.layouts for name in kept]
        numbers = np.array([number for kept in self.layouts for number in kept.values()], np.int64)
        counts = sizes[self.layout_of]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        first = (np.cumsum(sizes) - sizes)[self.layout_of]
        which = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
        entries = numbers[which] + np.repeat(self.tokens.row_at[:-1], counts)
        keys = pa.array(names, pa.string()).take(pa.array(which))
        return offsets, keys, self.tokens.take(2 * entries + 1)


def _various(tokens: _Tokens, names: pa.StringArray) -> _Various:
    _, offsets, buffer = names.buffers()
    row_bounds = np.frombuffer(offsets, np.int32)[: len(names) + 1][tokens.row_at]
    layouts = pa.Array.from_buffers(
        pa.binary(), len(row_bounds) - 1, [None, pa.py_buffer(row_bounds), buffer]
    ).dictionary_encode()
    return _Various(tokens, layouts.indices.to_numpy(), list(map(_kept, layouts.dictionary.to_pylist())))
