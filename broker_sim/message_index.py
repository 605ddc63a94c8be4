"""Where messages with a key lie (``IndexService``): by the words of KEYS, and by UNIQ_KEY.

Nobody asks in most runs, so nothing is noted when a message is stored: a question first reads on from where the
last one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker_sim.commit_log import CommitLog
from broker_sim.stored import StoredParts, read_stored

_SIZE_FIELD = 4
_MOST_RESULTS = 64
"""maxMsgsNumBatch."""


class IndexEntry(NamedTuple):
    """One message under one of its keys."""

    commit_log_offset: int
    store_timestamp: int
    size: int


class KeyMatches(NamedTuple):
    """What a question found."""

    entries: list[IndexEntry]
    """In the order they were stored; the newest if there are more than asked for."""
    last_indexed: IndexEntry | None
    """The newest message with any key."""


class MessageIndex:
    """(topic, key) → messages."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._read_to = 0
        self._entries: dict[tuple[str, str], list[IndexEntry]] = {}
        self._last: IndexEntry | None = None

    def find(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Messages of the topic that have the key and were stored between the two times, both included."""
        self._read_on()
        found = self._entries.get((topic, key), [])
        in_time = [each for each in found if begin_ms <= each.store_timestamp <= end_ms]
        count = min(most, _MOST_RESULTS)
        return KeyMatches(in_time[-count:] if count > 0 else [], self._last)

    def _read_on(self) -> None:
        self._forget_dropped()
        at = max(self._read_to, self._log.min_offset)
        while at < self._log.end_offset:
            size = int.from_bytes(self._log.read(at, _SIZE_FIELD), "big")
            message = read_stored(self._log.read(at, size))
            entry = IndexEntry(at, message.store_timestamp, size)
            for key in _keys(message):
                self._entries.setdefault((message.run.topic, key), []).append(entry)
                self._last = entry
            at += size
        self._read_to = at

    def _forget_dropped(self) -> None:
        """What the commit log no longer holds goes from the index as well, so that it stays as small."""
        oldest = self._log.min_offset
        for name, entries in list(self._entries.items()):
            kept = [each for each in entries if each.commit_log_offset >= oldest]
            if kept:
                self._entries[name] = kept
            else:
                del self._entries[name]


def _keys(message: StoredParts) -> Iterator[str]:
    properties = message.properties
    if "UNIQ_KEY" in properties:
        yield properties["UNIQ_KEY"]
    yield from filter(None, properties.get("KEYS", "").split(" "))
