"""Sinks that have the rows of a batch, as an offset row records them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from pyspark_rocketmq.errors import DamagedOffsets
from pyspark_rocketmq.stored_values import StoredValue, read_json


class RecordedSinks(StoredValue[Mapping[str, str]]):
    """The sinks of the batch that moved an offset row last.

    Text: a JSON object with the id of each sink's table by the sink's name, such as ``{"orders": "6f1c…"}``;
    empty without sinks. A text that cannot be read counts as empty.
    """

    __slots__ = ()

    @property
    def identities(self) -> Mapping[str, str]:
        """Id of each sink's table, by the sink's name; an empty string for a sink without such an id."""
        return self._read()

    def identity_of(self, name: str, identity: str | None, present: Collection[str] = ()) -> str | None:
        """Return the recorded table id of a sink; None if none is recorded.

        Args:
            name: The sink's name.
            identity: The present id of the sink's table. If this id is recorded under another name, the sink
                was renamed, and the id is returned.
            present: The ids of the tables of all sinks of the query. If the id that is recorded under the
                sink's name is one of these, it belongs to another sink and does not count: two databases may
                have tables of the same name.
        """
        known = self.identities
        if identity and identity in known.values():
            return identity
        of_name = (each for each_name, each in known.items() if each_name in (name, name_beside(name, each)))
        return next((each for each in of_name if each not in present), None)

    @staticmethod
    def _encode(facts: Mapping[str, str]) -> str:
        return json.dumps(facts, sort_keys=True) if facts else ""

    @staticmethod
    def _decode(text: str) -> Mapping[str, str]:
        try:
            found = read_json(text, "sinks", _identities) if text else {}
        except DamagedOffsets:
            return {}
        return found


NO_SINKS: Final = RecordedSinks()


def name_beside(name: str, identity: str) -> str:
    """Return the name under which a sink is recorded if another sink of the batch has the same name."""
    return f"{name} {identity}"


def _identities(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        raise TypeError("no object")
    return {str(name): str(identity) for name, identity in found.items()}
