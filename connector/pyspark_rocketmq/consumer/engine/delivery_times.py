"""The moments at which a range's messages were stored and delivered, from which its acks get latencies."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_rocketmq.consume.latencies import (
    BITS,
    LONGEST_MS,
    NO_LATENCIES,
    LatencyHistogram,
    StoreLatencies,
)
from pyspark_rocketmq.listeners.messages import MessagePiece

MARK_EVERY_S: Final = 0.001
"""Seconds within which all deliveries count as begun at the first one's moment: brokers' clocks are no finer.
"""
_FEW: Final = 12
"""Number of latencies up to which it is faster to count them one by one."""
_STORED_AT: Final = "storeTimestamp"
_MICROS_PER_MILLI: Final = 1000
_FLOAT_BITS: Final = 23
_BUCKET_OF_ONE: Final = 127 << BITS
"""The upper bits of 1.0 as a 32-bit float: its exponent, and the first three bits that follow."""


class DeliveryTimes:
    """When messages of one range were stored and delivered; kept until an ack contains the latencies.

    A message is named by its index among the messages that have arrived of the range, from 0.
    """

    def __init__(self, pieces: Iterable[MessagePiece] = ()) -> None:
        self._start = 0
        """Index of the first message that no ack contains."""
        self._stored: list[npt.NDArray[np.int64]] = []
        """When messages from ``_start`` on were stored, in milliseconds; 0 where it is not known."""
        self._marks: list[int] = []
        """Ascending indexes: messages from each index to the next one were delivered at the same moment."""
        self._marked_s: list[float] = []
        self.extend(pieces)

    def extend(self, pieces: Iterable[MessagePiece]) -> None:
        """Add the store times of the next messages."""
        self._stored += [stored_ms(piece) for piece in pieces if len(piece)]

    def began(self, index: int, at_s: float) -> None:
        """Note that messages from ``index`` on are delivered at ``at_s``, up to the index of the next call.

        The moments noted earlier for these messages are dropped, because the messages are delivered again.
        """
        while self._marks and self._marks[-1] >= index:
            self._marks.pop()
            self._marked_s.pop()
        self._marks.append(index)
        self._marked_s.append(at_s)

    def take(self, stop: int, *, now_s: float, wall_s: float) -> StoreLatencies:
        """Return the latencies of the messages below ``stop`` that no ack contains, for the next ack.

        ``now_s`` is this moment by the clock that measured the deliveries, ``wall_s`` is this moment by the
        wall clock, with which the brokers' times are compared.
        """
        stored = self._take_stored(stop - self._start)
        if not len(stored):
            return NO_LATENCIES
        began_s = self._take_began(stop)
        self._start = stop
        at_ms = int(wall_s * 1000)
        began_ms = (began_s + (wall_s - now_s)) * 1000
        is_known = (stored > 0) & np.isfinite(began_ms)
        if not is_known.all():
            stored, began_ms = stored[is_known], began_ms[is_known]
            if not len(stored):
                return NO_LATENCIES
        to_listener = histogram_of(began_ms.astype(np.int64) - stored)
        return StoreLatencies(to_listener, histogram_of(at_ms - stored), at_ms)

    def _take_stored(self, count: int) -> npt.NDArray[np.int64]:
        taken = []
        while count > 0 and self._stored:
            piece = self._stored[0]
            taken.append(piece[:count])
            if count < len(piece):
                self._stored[0] = piece[count:]
            else:
                del self._stored[0]
            count -= len(taken[-1])
        return taken[0] if len(taken) == 1 else np.concatenate([_NO_TIMES, *taken])

    def _take_began(self, stop: int) -> npt.NDArray[np.float64]:
        """Return when the messages below ``stop`` were delivered; not a number where it is not known."""
        last = bisect_right(self._marks, stop)
        edges = [self._start, *(max(mark, self._start) for mark in self._marks[:last]), stop]
        counts = [after - before for before, after in pairwise(edges)]
        began_s = np.repeat([np.nan, *self._marked_s[:last]], counts)
        # Keep the last mark: it may also count for messages from ``stop`` on.
        del self._marks[: last - 1], self._marked_s[: last - 1]
        return began_s


class EachDeliveryTimes(DeliveryTimes):
    """When messages of one range, delivered in any order, were stored and delivered."""

    def __init__(self, pieces: Iterable[MessagePiece] = ()) -> None:
        self._began_s = array("d")
        super().__init__(pieces)

    def extend(self, pieces: Iterable[MessagePiece]) -> None:
        """Add the store times of the next messages."""
        before = len(self._stored)
        super().extend(pieces)
        count = sum(map(len, self._stored[before:]))
        self._began_s.frombytes(np.full(count, np.nan).tobytes())

    def began_each(self, indexes: Sequence[int], at_s: float) -> None:
        """Note that the messages with these ``indexes`` are delivered at ``at_s``."""
        began_s, start = self._began_s, self._start
        for index in indexes:
            began_s[index - start] = at_s

    def _take_began(self, stop: int) -> npt.NDArray[np.float64]:
        count = stop - self._start
        taken = np.array(self._began_s[:count])
        del self._began_s[:count]
        return taken


_NO_TIMES: Final = np.empty(0, np.int64)


def stored_ms(piece: MessagePiece) -> npt.NDArray[np.int64]:
    """Return when messages were stored, in milliseconds; 0 where it is not known."""
    if isinstance(piece, list):
        return np.array([message.store_timestamp for message in piece], np.int64)
    column = piece.column(_STORED_AT).cast(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    times: npt.NDArray[np.int64] = column.to_numpy()
    return times // _MICROS_PER_MILLI


def histogram_of(latencies_ms: npt.NDArray[np.int64]) -> LatencyHistogram:
    """Return what ``LatencyHistogram.of`` returns, but faster; there must be at least one latency."""
    if len(latencies_ms) <= _FEW:
        return LatencyHistogram.of(latencies_ms.tolist())
    known = np.maximum(latencies_ms, 0)
    longest_ms = int(known.max())
    # A latency's bucket is the exponent of a float and the bits that follow it. 0 has the lowest bucket.
    bits = np.minimum(known, LONGEST_MS).astype(np.float32).view(np.int32) >> (_FLOAT_BITS - BITS)
    counts = np.bincount(np.maximum(bits - (_BUCKET_OF_ONE - 1), 0))
    buckets = np.flatnonzero(counts)
    return LatencyHistogram(
        dict(zip(buckets.tolist(), counts[buckets].tolist(), strict=True)), int(known.sum()), longest_ms
    )
