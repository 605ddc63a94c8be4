"""Parses option ``offsetStore``, which names an offset store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from pyspark_rocketmq.model import MessageModel
from pyspark_rocketmq.options.parsers import parses

_STORAGE_SCHEMES: Final = frozenset(
    {"abfs", "abfss", "adl", "az", "azure", "file", "gs", "hdfs", "s3", "s3a", "wasb", "wasbs"}
)
"""Schemes of URIs under which an offset table may be stored."""
_FORMS: Final = (
    "Use a path, a storage URI or delta:PATH for a Delta table, broker: for the offsets that the group's "
    "brokers keep, file:PATH for a folder on this machine, or memory:NAME"
)
_FILE_IS_LOCAL: Final = (
    "option 'offsetStore=file:…' keeps offsets on this machine only, so the members of a CLUSTERING group on "
    "other machines cannot use them; use a Delta table, or messageModel=BROADCASTING"
)
_BROKER_HAS_ONE: Final = (
    "option 'offsetStore=broker:' has only one offset for all instances of a group; with "
    "messageModel=BROADCASTING use file:PATH or a Delta table"
)
_BROKER_KEEPS_LITTLE: Final = (
    "option 'offsetStore=broker:' cannot serve an orderly consumer, because brokers store neither attempts "
    "nor suspensions nor epochs; use a Delta table, or consumeOrderly=false"
)


class StoreKind(StrEnum):
    """Kinds of offset stores."""

    DELTA = "delta"
    BROKER = "broker"
    FILE = "file"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A kind of store and its place."""

    kind: StoreKind
    place: str
    """Path, URI or name; empty for the brokers, which other options specify."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``KIND:PLACE``, a bare path or a storage URI.

        Raises:
            ValueError: If it names no store; the message ends a sentence that begins with the option.
        """
        spec = text.strip()
        scheme, separator, place = spec.partition(":")
        if not spec:
            raise ValueError(f"is empty. {_FORMS}")
        if not separator or not scheme.isalnum() or place.startswith("//"):
            _check_storage(spec)
            return cls(StoreKind.DELTA, spec)
        if scheme not in tuple(StoreKind):
            raise ValueError(f"has the unknown kind {scheme!r}. {_FORMS}")
        kind = StoreKind(scheme)
        if kind is StoreKind.BROKER and place:
            raise ValueError(f"has {place!r} after 'broker:', where nothing may follow. {_FORMS}")
        if kind is not StoreKind.BROKER and not place:
            raise ValueError(f"has nothing after the colon. {_FORMS}")
        return cls(kind, place)

    def problems(self, message_model: MessageModel, *, consume_orderly: bool) -> list[str]:
        """Return the reasons why a consumer with these settings cannot use this store; empty if it can."""
        is_broadcast = message_model is MessageModel.BROADCASTING
        checks = (
            (self.kind is StoreKind.FILE and not is_broadcast, _FILE_IS_LOCAL),
            (self.kind is StoreKind.BROKER and is_broadcast, _BROKER_HAS_ONE),
            (self.kind is StoreKind.BROKER and consume_orderly, _BROKER_KEEPS_LITTLE),
        )
        return [sentence for is_wrong, sentence in checks if is_wrong]


@parses("string")
def offset_store(text: str) -> str:
    """Parser of option ``offsetStore``: checks that its text names a store, and returns the text."""
    StoreSpec.parse(text)
    return text.strip()


def _check_storage(spec: str) -> None:
    scheme, separator, _ = spec.partition("://")
    if separator and scheme.lower() not in _STORAGE_SCHEMES:
        raise ValueError(f"has the unknown scheme {scheme!r}. {_FORMS}")
