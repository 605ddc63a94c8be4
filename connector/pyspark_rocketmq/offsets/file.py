"""Offset store in files on this machine, one folder per group, for broadcasting consumers.

The format is that of Java's ``LocalFileOffsetStore``: the same file name, the same ``offsetTable``, and the
previous content in ``offsets.json.bak``. Fields that Java does not keep are in ``rows``, beside the table.
A file written by Java can be read as it is.

Rule 1: a change is made under the group's lock file, so the processes of one machine do not overwrite each
other's changes. Other machines do not share the files: this store is for a consumer that shares its queues
with nobody.
Rule 2: at every moment ``offsets.json`` is complete or missing; if it is missing, ``offsets.json.bak`` is
complete. The complete file has the last change that was reported as stored, or a newer one.
Rule 3: if one file is damaged, the other one is read instead, and a warning is logged. If no file can be
read, that is an error: without offsets the group would start again.

Shape, pretty-printed or not; ``rows`` is our addition, and ``offsetTable`` has objects as keys, as in Java::

    {"offsetTable": {{"brokerName": …, "queueId": …, "topic": …}: 12, …},
     "version": 2,
     "rows": [{"brokerName": …, "queueId": …, "topic": …, "epoch": …, …}]}

Source: ``OffsetSerializeWrapper``, ``LocalFileOffsetStore``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Final
from urllib.parse import quote, unquote

from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.delta.paths import local_path, table_uri
from pyspark_rocketmq.display import peer_text
from pyspark_rocketmq.errors import (
    OffsetCommitConflict,
    OffsetError,
    OffsetStoreUnavailable,
    OptionError,
    RemoteProtocolError,
    SchemaError,
)
from pyspark_rocketmq.model import MessageQueue, QueueState, camel_case
from pyspark_rocketmq.offsets.rules import Change, ResultT, RowOffsetStore, Rows, new_row
from pyspark_rocketmq.offsets.store import STORED_FIELDS, OffsetRow
from pyspark_rocketmq.wire.fastjson import JsonObject, dumps_java, queue_to_json, read_object
from pyspark_rocketmq.wire.requests.bodies import offsets_from_json, queue_from_json

logger = logging.getLogger(__name__)

_VERSION: Final = 2
"""Version of the file that this release writes.

Version 2 adds ``boundaries``. Earlier releases must refuse it, for the reasons given at ``NEWEST_VERSION`` of
``offsets.delta_rows``.
"""
_NAME: Final = "offsets.json"
_LONGEST_NAME: Final = 255
"""Maximum number of characters of a folder's name."""
_KINDS: Final = {"string": (str,), "integer": (int,), "long": (int,), "timestamp": (float, int)}
_KEPT: Final = tuple(
    (
        camel_case(field.column),
        field,
        (*_KINDS[field.type], NoneType) if field.name == "suspended_until_s" else _KINDS[field.type],
    )
    for field in STORED_FIELDS
    if field.name != "next_offset"
)
"""Fields in ``rows`` of the file: key, declaration, and the types that the stored value may have."""

_BAK: Final = f"{_NAME}.bak"
_LOCK_TIMEOUT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.005


def encode_rows(rows: Iterable[OffsetRow]) -> bytes:
    """Return the content of one group's file, in which ``rows`` are sorted by queue."""
    ordered = sorted(rows, key=lambda row: row.queue)
    return dumps_java(
        {
            "offsetTable": {row.queue: row.next_offset for row in ordered},
            "version": _VERSION,
            "rows": [
                queue_to_json(row.queue) | _kept_of(row._asdict() | row.state._asdict()) for row in ordered
            ],
        }
    )


def _kept_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: field.to_plain(values[field.name]) for key, field, _ in _KEPT}


def decode_rows(content: bytes, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
    """Parse the content of one group's file, written by us or by Java.

    Raises:
        RemoteProtocolError: If it is truncated or not an offset file.
        SchemaError: If a newer release wrote it.
    """
    document = read_object(content, _NAME)
    version = document.integer("version", _VERSION)
    if version > _VERSION:
        raise SchemaError(
            f"The offset file of group {consumer_group} has version {version}, but this release reads "
            f"versions up to {_VERSION}. Use the release that wrote it, or name another path for the offset "
            "store."
        )
    known = {queue_from_json(row.members, _NAME): row for row in document.objects("rows")}
    return {
        queue: _row(consumer_group, queue, next_offset, known.get(queue))
        for queue, next_offset in offsets_from_json(document, "offsetTable").items()
    }


def _row(consumer_group: str, queue: MessageQueue, next_offset: int, kept: JsonObject | None) -> OffsetRow:
    if next_offset < 0:
        raise RemoteProtocolError(f"{_NAME}: next offset {next_offset} of {queue} is negative.")
    values: dict[str, Any] = {}
    for key, field, kinds in _KEPT:
        if kept is not None and key in kept.members:
            plain = kept.members[key]
            if type(plain) not in kinds:
                raise RemoteProtocolError(
                    f"{_NAME}: {key} of {queue} is {peer_text(repr(plain))}; that is not of type "
                    f"{kinds[0].__name__}."
                )
            values[field.name] = field.from_plain(plain)
    state = {name: values.pop(name) for name in QueueState._fields if name in values}
    return new_row(consumer_group, queue, next_offset)._replace(
        state=QueueState(next_offset, **state), **values
    )


class FileOffsetStore(RowOffsetStore):
    """An offset store in a folder of this machine, which its processes may share; for broadcasting consumers.

    Source: Java's ``LocalFileOffsetStore``, whose folder is ``~/.rocketmq_offsets/CLIENT_ID/GROUP``.
    """

    def __init__(
        self, path: str | Path, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Take the folder's path or ``file:`` URI, without creating it.

        Raises:
            OptionError: If it is the URI of other storage.
        """
        folder = local_path(table_uri(path))
        if folder is None:
            problem = (
                f"'{path}' is not a folder of this machine; for other storage use DeltaOffsetStore(path)"
            )
            raise OptionError((problem,), where="FileOffsetStore")
        self._folder = Path(folder)
        self._clock = clock or SystemClock()
        self._sleep = sleep

    def __reduce__(self) -> tuple[type[FileOffsetStore], tuple[Path]]:
        return FileOffsetStore, (self._folder,)

    def __repr__(self) -> str:
        return f"FileOffsetStore({str(self._folder)!r})"

    @property
    def spec(self) -> str:
        """The text ``file:PATH``, by which another process opens the same store."""
        return f"file:{self._folder}"

    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups that have a file, sorted."""
        files = [file for name in (_NAME, _BAK) for file in self._folder.glob(f"*/{name}")]
        return tuple(sorted({unquote(file.parent.name) for file in files}))

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows; empty if the group has no file.

        Raises:
            OffsetError: If a file is damaged, and neither ``offsets.json`` nor its ``.bak`` can be read.
            SchemaError: If a newer release wrote the file.
            OffsetStoreUnavailable: If the storage does not answer.
        """
        rows, _ = self._read(consumer_group)
        return rows

    def _read(self, consumer_group: str) -> tuple[dict[MessageQueue, OffsetRow], Path | None]:
        """Return the group's rows, and the file that has them; None without a file."""
        main = self._file_of(consumer_group)
        trouble: Exception | None = None
        for file in (main, _bak(main)):
            try:
                return decode_rows(file.read_bytes(), consumer_group), file
            except FileNotFoundError:
                continue
            except RemoteProtocolError as error:
                logger.warning("offset file is damaged and not used file=%s: %s", file, error)
                trouble = trouble or error
            except OSError as error:
                raise OffsetStoreUnavailable(
                    f"The offsets of group {consumer_group} could not be read from {file}: {error}. "
                    "Check that the disk is mounted and that this process may read the file."
                ) from error
        if trouble is not None:
            raise OffsetError(
                f"The offsets of group {consumer_group} can be read neither from {main} nor from "
                f"{_bak(main).name} beside it: {trouble} Put a good copy into one of them. Without one, "
                "remove both files: the group then continues at the offsets of its sink's table, or, without "
                "a sink, at its offsets at the brokers. If there are none either, as in broadcasting, it "
                "begins where consumeFromWhere says, and may skip messages."
            ) from trouble
        return {}, None

    def _change(
        self,
        consumer_group: str,
        decide: Callable[[Rows], Change[ResultT]],
        action: str,  # noqa: ARG002 - has no history
    ) -> ResultT:
        main = self._file_of(consumer_group)
        try:
            with self._locked(consumer_group, main.parent):
                before, file = self._read(consumer_group)
                change = decide(before)
                if change.rows != before:
                    _replace(main, encode_rows(change.rows.values()), keeps_main=file == main)
                return change.result
        except OSError as error:
            raise OffsetStoreUnavailable(
                f"The offsets of group {consumer_group} could not be stored in {main}: {error}. "
                "Check that the disk has room and that this process may write the folder; then try again."
            ) from error

    @contextmanager
    def _locked(self, consumer_group: str, folder: Path) -> Iterator[None]:
        folder.mkdir(parents=True, exist_ok=True)
        give_up_at_s = self._clock.monotonic_s() + _LOCK_TIMEOUT_S
        with (folder / "offsets.lock").open("ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self._clock.monotonic_s() >= give_up_at_s:
                        raise OffsetCommitConflict(
                            f"The offsets of group {consumer_group} in {folder} are locked. Another process "
                            f"has held the lock for {_LOCK_TIMEOUT_S:g} s: check whether it hangs, and try "
                            "again."
                        ) from None
                    self._sleep(_LOCK_PAUSE_S)
            yield

    def _file_of(self, consumer_group: str) -> Path:
        if not consumer_group:
            raise OffsetError(
                "The consumer group has no name, so its offsets have no folder. Name the group in option "
                "consumerGroup."
            )
        name = quote(consumer_group, safe=" @")
        if len(name) > _LONGEST_NAME:
            raise OffsetError(
                f"The key of the group's offsets, {consumer_group}, has {len(name)} characters as the name "
                f"of a folder, and such a name can have {_LONGEST_NAME}. Shorten option consumerGroup, or "
                "with messageModel=BROADCASTING option instanceName; or use a Delta table as offsetStore."
            )
        # "." and ".." would name other folders, and quote() does not escape dots.
        return self._folder / (name.replace(".", "%2E") if name in (".", "..") else name) / _NAME


def _bak(main: Path) -> Path:
    return main.with_name(_BAK)


def _replace(main: Path, content: bytes, *, keeps_main: bool) -> None:
    """Write ``content`` to a new file, and put it in the place of the old file ``main``.

    With ``keeps_main`` the old file becomes the ``.bak``. Without it the ``.bak`` stays as it is: if the old
    file is damaged, the ``.bak`` is the only copy until the new file is in place.
    """
    new = main.with_name(f"{_NAME}.tmp")
    # A file of this name is left from a crash, or is somebody's link: remove it instead of writing into it.
    new.unlink(missing_ok=True)
    with new.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if keeps_main:
        main.replace(_bak(main))
    new.replace(main)
    folder = os.open(main.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
