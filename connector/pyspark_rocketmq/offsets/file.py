"""The offset store as files on this machine: a folder per group with ``offsets.json``, for broadcasting consumers.

Java's ``LocalFileOffsetStore``: the same file name, the same ``offsetTable`` in it, the content before the last
change in ``offsets.json.bak``. What Java does not keep stands beside the table in ``rows``; a file of Java's is taken
over as it is.

Rule 1: a change is made under the group's lock file, so that the processes of one machine see each other's. Other
machines do not: this store is for a consumer that shares its queues with nobody.
Rule 2: at every moment there is a whole file of the last change or of the one before it that was reported done.
Rule 3: a file that cannot be read is an error, never "no offsets": those would begin the group anew.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from pyspark_rocketmq.client.system_clock import SystemClock
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.errors import (
    OffsetCommitConflict,
    OffsetError,
    OffsetStoreUnavailable,
    RemoteProtocolError,
)
from pyspark_rocketmq.model import MessageQueue
from pyspark_rocketmq.offsets.file_form import decode_rows, encode_rows
from pyspark_rocketmq.offsets.ruled import RuledOffsetStore
from pyspark_rocketmq.offsets.rules import Change, ResultT, Rows
from pyspark_rocketmq.offsets.store import OffsetRow

logger = logging.getLogger(__name__)

_NAME: Final = "offsets.json"
_BAK: Final = f"{_NAME}.bak"
_LOCK_TIMEOUT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.005


class FileOffsetStore(RuledOffsetStore):
    """Implements ``OffsetStore`` for the processes of one machine.

    Source: ``LocalFileOffsetStore``; its folder is ``~/.rocketmq_offsets/CLIENT_ID/GROUP``.
    """

    def __init__(
        self, path: str | Path, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._folder = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._sleep = sleep

    def __reduce__(self) -> tuple[type[FileOffsetStore], tuple[Path]]:
        return FileOffsetStore, (self._folder,)

    def __repr__(self) -> str:
        return f"FileOffsetStore({str(self._folder)!r})"

    @property
    def spec(self) -> str:
        """``file:PATH``."""
        return f"file:{self._folder}"

    def groups(self) -> tuple[str, ...]:
        """See ``OffsetStore.groups``."""
        return tuple(
            sorted(
                {
                    unquote(file.parent.name)
                    for name in (_NAME, _BAK)
                    for file in self._folder.glob(f"*/{name}")
                }
            )
        )

    def read(self, consumer_group: str) -> dict[MessageQueue, OffsetRow]:
        """Return the group's rows.

        Raises:
            OffsetError: If neither the file nor the one before it can be understood.
            OffsetStoreUnavailable: If the storage does not answer.
        """
        main = self._file_of(consumer_group)
        trouble: Exception | None = None
        for file in (main, _bak(main)):
            try:
                return decode_rows(file.read_bytes(), consumer_group)
            except FileNotFoundError:
                continue
            except RemoteProtocolError as error:
                logger.warning("offset file cannot be understood file=%s: %s", file, error)
                trouble = trouble or error
            except OSError as error:
                raise OffsetStoreUnavailable(
                    f"The offsets of group {consumer_group} could not be read from {file}: {error} "
                    "Check that the disk is there and the file may be read."
                ) from error
        if trouble is not None:
            raise OffsetError(
                f"The offsets of group {consumer_group} in {main} cannot be understood, and {_bak(main).name} beside it "
                f"does not help: {trouble} Put a good copy there, or remove both to begin the group anew."
            ) from trouble
        return {}

    def _change(self, consumer_group: str, decide: Callable[[Rows], Change[ResultT]], action: str) -> ResultT:  # noqa: ARG002 - has no history
        main = self._file_of(consumer_group)
        try:
            with self._locked(consumer_group, main.parent):
                before = self.read(consumer_group)
                change = decide(before)
                if change.rows != before:
                    _replace(main, encode_rows(change.rows.values()))
                return change.result
        except OSError as error:
            raise OffsetStoreUnavailable(
                f"The offsets of group {consumer_group} could not be stored in {main}: {error} "
                "Check that the disk has room and the folder can be written; the batch may be tried again."
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
                            f"The offsets of group {consumer_group} in {folder} were locked by another process for "
                            f"{_LOCK_TIMEOUT_S:g} s. Look for one that hangs; the batch may be tried again."
                        ) from None
                    self._sleep(_LOCK_PAUSE_S)
            yield

    def _file_of(self, consumer_group: str) -> Path:
        if not consumer_group:
            raise OffsetError(
                "The consumer group has no name, so there is no folder for its offsets. Name it."
            )
        name = quote(consumer_group, safe=" @")
        # These two are other folders, and quote() leaves dots as they are.
        return self._folder / (name.replace(".", "%2E") if name in (".", "..") else name) / _NAME


def _bak(main: Path) -> Path:
    return main.with_name(_BAK)


def _replace(main: Path, content: bytes) -> None:
    """Write the new file whole, then let it take the old one's place, which becomes the ``.bak``."""
    new = main.with_name(f"{_NAME}.tmp")
    # What lies there is left from a crash, or a link that somebody laid: nothing is written through it.
    new.unlink(missing_ok=True)
    with new.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if main.exists():
        main.replace(_bak(main))
    new.replace(main)
    folder = os.open(main.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
