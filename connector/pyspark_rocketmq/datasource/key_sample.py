"""Which sharding keys a task sent, sampled so that tasks can be compared: a key is in the sample of each or of none.

Of more keys than a sample holds, those with the smallest hashes stay; the comparison goes up to the smallest of the
samples' greatest hashes.  A DataFrame that is not arranged by key has most of its keys in several tasks: one is found.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

MOST_KEYS: Final = 4096
_SHOWN_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True)
class KeySample:
    """Topics and sharding keys of a task, by hash."""

    keys: dict[int, str]
    end: int
    """Every key of the task with a hash below this is here."""


@dataclass(slots=True)
class KeySampler:
    """Gathers the sample of one task."""

    _found: dict[int, str] = field(default_factory=dict)
    _end: int = 1 << 64

    def add(self, topic: str, sharding_key: str) -> None:
        """Take in a key, which may come again."""
        digest = hashlib.blake2b(f"{topic}\0{sharding_key}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        if number >= self._end:
            return
        self._found[number] = sharding_key[:_SHOWN_CHARACTERS]
        if len(self._found) >= 2 * MOST_KEYS:
            self._shrink()

    def sample(self) -> KeySample:
        """Of what was added so far."""
        if len(self._found) > MOST_KEYS:
            self._shrink()
        return KeySample(self._found, self._end)

    def _shrink(self) -> None:
        kept = heapq.nsmallest(MOST_KEYS, self._found)
        self._end = kept[-1] + 1
        self._found = {number: self._found[number] for number in kept}


def keys_of_several_tasks(samples: Iterable[KeySample]) -> list[str]:
    """Sharding keys that more than one of the tasks sent, as far as the samples tell."""
    known = list(samples)
    end = min((sample.end for sample in known), default=0)
    seen: set[int] = set()
    twice: dict[int, str] = {}
    for sample in known:
        for number, sharding_key in sample.keys.items():
            if number < end and number in seen:
                twice[number] = sharding_key
            seen.add(number)
    return sorted(twice.values())
