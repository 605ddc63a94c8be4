"""Consumer groups as an operator configures them (``SubscriptionGroupManager``)."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_rocketmq.wire.requests.topics import SubscriptionGroupConfig


class SubscriptionGroups:
    """The groups a broker knows."""

    def __init__(self) -> None:
        self._groups: dict[str, SubscriptionGroupConfig] = {}

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._groups.values())

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, if it exists."""
        return self._groups.get(name)

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace a group."""
        self._groups[group.group_name] = group

    def delete(self, name: str) -> None:
        """Forget a group; one that does not exist is no error."""
        self._groups.pop(name, None)

    def find_or_create(self, name: str, *, may_create: bool) -> SubscriptionGroupConfig | None:
        """The group, made with defaults when it is missing and that is allowed.

        Source: ``SubscriptionGroupManager.findSubscriptionGroupConfig``.
        """
        group = self._groups.get(name)
        if group is None and may_create:
            group = SubscriptionGroupConfig(group_name=name)
            self.put(group)
        return group
