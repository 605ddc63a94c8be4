"""Groups of an existing offset store, selected by the names that users give, now and in the past."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pyspark_rocketmq.cli.offsets.moves import AtTime, AtVersion
from pyspark_rocketmq.cli.settings import JobFailed
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.history import OffsetHistory, StoredChange, change_at, change_of_version
from pyspark_rocketmq.offsets.open import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetKey, OffsetRow, OffsetStore
from pyspark_rocketmq.options.store_spec import StoreSpec

GroupRows = dict[OffsetKey, list[OffsetRow]]


class StoreSettings(Protocol):
    """Settings with which a command finds groups: the offset store, its access, and a namespace."""

    @property
    def offset_store(self) -> str:
        """Value of option ``offsetStore``."""
        ...

    @property
    def storage_secrets(self) -> str | None:
        """Value of option ``storageSecrets``."""
        ...

    @property
    def namespace(self) -> str | None:
        """Namespace of the groups; None means any."""
        ...


@dataclass(frozen=True)
class StoredGroup:
    """One group of an offset store: its present rows, none if the group is new, and its history."""

    store: OffsetStore
    name: OffsetKey
    rows: Mapping[MessageQueue, OffsetRow]

    @cached_property
    def changes(self) -> Sequence[StoredChange]:
        """Changes of the group's rows to which it can be reset, oldest first; read from the store only once.

        Raises:
            JobFailed: If the store keeps no history.
        """
        return self._history().changes(str(self.name))

    def change_at(self, moment: AtTime | AtVersion) -> StoredChange:
        """Return the last change of the group's rows before or at ``moment``.

        Raises:
            JobFailed: If the store keeps no history, or has not reached that version yet.
            OffsetError: If the history does not go back so far.
        """
        if isinstance(moment, AtTime):
            return change_at(self.changes, str(self.name), moment.at_s)
        newest = self._history().newest_version()
        if moment.version > newest:
            raise JobFailed(
                f"The offset store {_place(self.store)} has no version {moment.version} yet, its newest is "
                f"{newest}. `pyspark-rocketmq offsets history --conf FILE` lists the versions to choose from."
            )
        return change_of_version(self.changes, str(self.name), moment.version)

    def rows_at(self, moment: AtTime | AtVersion) -> Mapping[MessageQueue, OffsetRow]:
        """Return the group's rows at ``moment``.

        Raises:
            JobFailed: If the store keeps no history, or has not reached that version yet.
            OffsetError: If the history does not go back so far.
        """
        return self.rows_of(self.change_at(moment))

    def rows_of(self, change: StoredChange) -> Mapping[MessageQueue, OffsetRow]:
        """Return the group's rows right after ``change``."""
        return self._history().rows_of(str(self.name), change)

    def rows_of_all(self, changes: Sequence[StoredChange]) -> Mapping[int, Mapping[MessageQueue, OffsetRow]]:
        """Return the group's rows after each of ``changes``, by version.

        Versions that the store no longer keeps are left out.
        """
        return self._history().rows_of_all(str(self.name), changes)

    def _history(self) -> OffsetHistory:
        if not isinstance(self.store, OffsetHistory):
            raise JobFailed(
                f"The offset store {self.store.spec} keeps no history, which this command needs; only "
                "a Delta table keeps one."
            )
        return self.store


def read_groups(settings: StoreSettings, consumer_group: str | None) -> GroupRows:
    """Return the rows of ``consumer_group``, or of every group if None, by group.

    A broadcasting group has one entry for each of its instances. With a namespace in ``settings``, groups of
    other namespaces are left out.

    Raises:
        JobFailed: If there is no such store or group.
    """
    store = _opened(settings)
    chosen = _chosen(store, consumer_group, settings.namespace)
    if consumer_group is not None and not chosen:
        raise JobFailed(_unknown(store, consumer_group))
    return {name: list(store.read(str(name)).values()) for name in chosen}


def open_group(settings: StoreSettings, consumer_group: str) -> StoredGroup:
    """Return the stored group called ``consumer_group``.

    If only one group fits, the name may leave out the namespace, and the instance of a broadcasting group
    (``GROUP@INSTANCE``). A group that is stored under exactly this name is taken before others that fit.

    Raises:
        JobFailed: If the store is missing, or has no such group, or several fit.
    """
    store = _opened(settings)
    key = _key(consumer_group, settings.namespace)
    fitting = _chosen(store, consumer_group, settings.namespace)
    if not fitting:
        raise JobFailed(_unknown(store, consumer_group))
    if key not in fitting and len(fitting) > 1:
        names = ", ".join(str(name) for name in fitting)
        raise JobFailed(f"Several groups are called '{consumer_group}'. Give one of these names: {names}.")
    return _stored(store, key if key in fitting else fitting[0])


def open_group_or_new(settings: StoreSettings, consumer_group: str, *, is_new: bool) -> StoredGroup:
    """Return the group of exactly this name in the namespace of ``settings``; without rows if it is new.

    ``is_new`` is true if the user asked for a new group (``--new-group``). The name then means a group of
    exactly this name, although other stored groups fit it too, and the store may be missing.

    Raises:
        JobFailed: Unless ``is_new``: if the store is missing or has no group at all; or if it has no group of
            this name, but the name also fits another group.
    """
    store = _opened(settings)
    key = _key(consumer_group, settings.namespace)
    fitting = [] if is_new else _chosen(store, consumer_group, settings.namespace)
    if fitting and key not in fitting:
        names = ", ".join(str(name) for name in fitting)
        raise JobFailed(
            f"'{consumer_group}' may mean a new group '{key}' or one that the store {_place(store)} has: "
            f"{names}. If you mean the stored group, give its full name. To create '{key}', first run "
            "`pyspark-rocketmq offsets reset --new-group --topic TOPIC --to earliest`, with the options of "
            "this command and nameServers; then give this command again."
        )
    if is_new and str(key) not in store.groups():
        # Reading would create a table that is missing, even for a dry run.
        return StoredGroup(store, key, {})
    return _stored(store, key)


def _stored(store: OffsetStore, name: OffsetKey) -> StoredGroup:
    return StoredGroup(store, name, store.read(str(name)))


def _key(consumer_group: str, namespace: str | None) -> OffsetKey:
    key = OffsetKey.parse(consumer_group)
    if key.namespace and namespace is not None and key.namespace != namespace:
        raise JobFailed(
            f"Consumer group '{consumer_group}' names namespace '{key.namespace}', but the options name "
            f"'{namespace}'. Correct option 'consumerGroup', or give option 'namespace', which otherwise "
            "comes from the host name in 'nameServers'."
        )
    return key._replace(namespace=key.namespace or namespace or "")


def _opened(settings: StoreSettings) -> OffsetStore:
    storage = StorageOptions.parse(settings.storage_secrets)
    return open_offset_store(settings.offset_store, storage=storage)


def _chosen(store: OffsetStore, consumer_group: str | None, namespace: str | None) -> list[OffsetKey]:
    names = [OffsetKey.parse(name) for name in store.groups()]
    if not names:
        raise JobFailed(
            f"There are no offsets at {_place(store)}: correct option 'offsetStore'. A store gets its first "
            "offsets when a query starts."
        )
    return [name for name in names if _is_meant(name, consumer_group, namespace)]


def _is_meant(name: OffsetKey, consumer_group: str | None, namespace: str | None) -> bool:
    if namespace is not None and name.namespace != namespace:
        return False
    shared = name._replace(instance=None)
    with_instance = str(name._replace(namespace=""))
    return consumer_group is None or consumer_group in (name.group, str(shared), str(name), with_instance)


def _unknown(store: OffsetStore, consumer_group: str) -> str:
    known = store.groups()
    near = difflib.get_close_matches(consumer_group, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return (
        f"The offset store {_place(store)} holds nothing of consumer group '{consumer_group}'; its groups "
        f"are: {', '.join(known)}.{hint}"
    )


def _place(store: OffsetStore) -> str:
    return StoreSpec.parse(store.spec).place
