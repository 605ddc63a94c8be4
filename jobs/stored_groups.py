"""The rows of an existing offset table, chosen as a user names groups."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from jobs.errors import JobFailed
from pyspark_rocketmq.offsets.progress_name import ProgressName
from pyspark_rocketmq.offsets.registry import open_offset_store
from pyspark_rocketmq.offsets.store import OffsetRow

GroupRows = dict[ProgressName, list[OffsetRow]]


def read_groups(path: str, consumer_group: str | None, namespace: str | None) -> GroupRows:
    """The rows of every group, or of those called ``consumer_group``, all instances of a broadcasting one.

    ``namespace`` leaves out the groups of others.

    Raises:
        JobFailed: If there is no such table or group.
    """
    stored = {ProgressName.parse(name): name for name in _names_in(path)}
    chosen = [name for name in stored if _is_meant(name, consumer_group, namespace)]
    if consumer_group is not None and not chosen:
        known = ", ".join(stored.values()) or "none"
        raise JobFailed(
            f"The offset table {path} holds nothing of consumer group '{consumer_group}'; its groups are: {known}."
        )
    store = open_offset_store(path)
    return {name: list(store.read(stored[name]).values()) for name in chosen}


def _is_meant(name: ProgressName, consumer_group: str | None, namespace: str | None) -> bool:
    if namespace is not None and name.namespace != namespace:
        return False
    return consumer_group is None or consumer_group in (name.group, str(name._replace(instance=None)))


def _names_in(path: str) -> list[str]:
    """Of an existing table: opening a store would make a missing one."""
    try:
        partitions = DeltaTable(path.removeprefix("delta:")).partitions()
    except TableNotFoundError as error:
        raise JobFailed(f"There is no offset table at {path}; correct option 'offsetStore'.") from error
    return sorted({partition["consumer_group"] for partition in partitions})
