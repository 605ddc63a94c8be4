"""Consumer groups as an operator configures them (``SubscriptionGroupManager``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroup:
    """Rights and retry rules of one consumer group (``SubscriptionGroupConfig``).

    What is not mentioned elsewhere is only kept and shown.
    """

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15


class SubscriptionGroups:
    """The groups a broker knows."""

    def __init__(self) -> None:
        self._groups: dict[str, SubscriptionGroup] = {}

    def __iter__(self) -> Iterator[SubscriptionGroup]:
        return iter(self._groups.values())

    def find(self, name: str) -> SubscriptionGroup | None:
        """The group, if it exists."""
        return self._groups.get(name)

    def put(self, group: SubscriptionGroup) -> None:
        """Create or replace a group."""
        self._groups[group.name] = group

    def delete(self, name: str) -> None:
        """Forget a group; one that does not exist is no error."""
        self._groups.pop(name, None)

    def find_or_create(self, name: str, *, may_create: bool) -> SubscriptionGroup | None:
        """The group, made with defaults when it is missing and that is allowed.

        Source: ``SubscriptionGroupManager.findSubscriptionGroupConfig``.
        """
        group = self._groups.get(name)
        if group is None and may_create:
            group = SubscriptionGroup(name=name)
            self.put(group)
        return group
