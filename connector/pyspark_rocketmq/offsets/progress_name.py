"""Under which name the offset store and the sink know a consumer's progress.

``GROUP``, ``NAMESPACE%GROUP``, and for each instance of a broadcasting group ``GROUP@INSTANCE``: groups of one name
in two namespaces may share a store, and broadcasting instances have nothing in common but the group's name.
A namespace ends at the first ``%``, as RocketMQ has it; neither names of groups nor of instances hold an ``@``.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from pyspark_rocketmq.wire.namespace import with_namespace

_BEFORE_INSTANCE = "@"
_AFTER_NAMESPACE = "%"


class ProgressName(NamedTuple):
    """Whose progress it is."""

    namespace: str
    """Empty for none."""
    group: str
    """As its members name it, without the namespace."""
    instance: str | None = None
    """Of a broadcasting group."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The parts of a stored name."""
        name, at, instance = text.partition(_BEFORE_INSTANCE)
        namespace, percent, group = name.partition(_AFTER_NAMESPACE)
        namespace, group = (namespace, group) if percent else ("", name)
        return cls(namespace, group, instance if at else None)

    def __str__(self) -> str:
        name = with_namespace(self.namespace, self.group)
        return name if self.instance is None else f"{name}{_BEFORE_INSTANCE}{self.instance}"
