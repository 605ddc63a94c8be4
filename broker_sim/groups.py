"""Consumer groups as an operator configures them (``SubscriptionGroupManager``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroup:
    """Rights and retry rules of one consumer group."""

    name: str
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16


class SubscriptionGroups:
    """The groups a broker knows."""

    def __init__(self) -> None:
        self._groups: dict[str, SubscriptionGroup] = {}

    def find(self, name: str) -> SubscriptionGroup | None:
        """The group, if it exists."""
        return self._groups.get(name)

    def put(self, group: SubscriptionGroup) -> None:
        """Create or replace a group."""
        self._groups[group.name] = group

    def find_or_create(self, name: str, *, may_create: bool) -> SubscriptionGroup | None:
        """The group, made with defaults when it is missing and that is allowed.

        Source: ``SubscriptionGroupManager.findSubscriptionGroupConfig``.
        """
        group = self._groups.get(name)
        if group is None and may_create:
            group = SubscriptionGroup(name=name)
            self.put(group)
        return group
