"""The storage of a chaos run's tables: its folder, or an S3 that fails as scheduled."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from pyspark_rocketmq.delta.snapshot import HandlePerThread, TableSnapshot
from pyspark_rocketmq.delta.storage_options import StorageOptions
from pyspark_rocketmq.delta.table import open_table
from pyspark_rocketmq.offsets.delta import DeltaOffsetStore
from tests.applications.schedule import Kind
from tests.object_stores.server import COMMIT, KEY, SECRET, Bucket, S3Server


@dataclass(frozen=True, slots=True)
class KeysInFile:
    """Storage options as an agent keeps them in a file, which it replaces before they expire."""

    path: Path

    def __call__(self) -> Mapping[str, str]:
        found: dict[str, str] = json.loads(self.path.read_text())
        return found


class Storage:
    """A folder of this machine."""

    keys: KeysInFile | None = None
    """How applications reach it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: dict[str, HandlePerThread[TableSnapshot]] = {}

    def uri(self, table: str) -> str:
        """Return the URI of a table."""
        return str(self._folder / table)

    @property
    def options(self) -> dict[str, str]:
        """Options with which the test reads it; faults are only for applications."""
        return {}

    def table(self, table: str) -> DeltaTable | None:
        """Return the table's newest version, if there is one; it is valid until this thread asks again."""
        if not DeltaTable.is_deltatable(self.uri(table), storage_options=self.options):
            return None
        # An emulator of storage serves everyone from one core, and opening a table reads a hundred commits.
        handles = self._handles.setdefault(table, HandlePerThread(partial(self._opened, table)))
        return handles.newest().table

    def _opened(self, table: str) -> TableSnapshot:
        options = StorageOptions(self.options)
        return TableSnapshot(open_table(self.uri(table), options), options)

    def store(self, table: str) -> DeltaOffsetStore:
        """Open the offset store in a table again, for the table may have been deleted since."""
        return DeltaOffsetStore(self.uri(table), storage_options=self.options)

    def remove(self, table: str) -> None:
        """Remove a table."""
        shutil.rmtree(self.uri(table))

    def do(self, kind: Kind) -> None:
        """Do what the schedule asks of the storage."""
        raise NotImplementedError


_ENDS = frozenset({Kind.STORAGE_STOP, Kind.STORAGE_HOLD})
_GOES_ON = frozenset({Kind.STORAGE_START, Kind.STORAGE_GO_ON})


class StorageOnS3(Storage):
    """A bucket."""

    def __init__(self, server: S3Server, folder: Path, seed: int) -> None:
        super().__init__(folder)
        self._server = server
        self._bucket = Bucket(server)
        self._random = random.Random(seed)
        self._number = 0
        self._answers = True
        self.keys = KeysInFile(folder / "keys.json")
        self._renew_keys()

    def uri(self, table: str) -> str:
        return self._bucket.uri(table)

    @property
    def options(self) -> dict[str, str]:
        return self._bucket.patient_options(is_direct=True)

    def remove(self, table: str) -> None:
        self._bucket.remove(table)

    def do(self, kind: Kind) -> None:
        doing: dict[Kind, Callable[[], None]] = {
            Kind.STORAGE_BUSY: lambda: self._fail(60, status=503, code="SlowDown"),
            Kind.STORAGE_SILENT: lambda: self._fail(6, where=self._random.choice(("PUT|POST", COMMIT))),
            Kind.STORAGE_SLOW: lambda: self._fail(40, delay_s=self._random.uniform(0.2, 1.0)),
            Kind.STORAGE_KEYS: self._renew_keys,
            Kind.STORAGE_STOP: self._server.shut_gate,
            Kind.STORAGE_START: self._server.open_gate,
            Kind.STORAGE_HOLD: lambda: self._server.hold_gate(is_held=True),
            Kind.STORAGE_GO_ON: lambda: self._server.hold_gate(is_held=False),
        }
        if kind is Kind.STORAGE_KEYS and not self._answers:
            # Keys are handed out only once the storage accepts them.
            return
        doing[kind]()
        self._answers = (self._answers or kind in _GOES_ON) and kind not in _ENDS
        if kind in _GOES_ON:
            self._behave()

    def _fail(self, most: int, **fault: Any) -> None:
        self._behave({"where": "", **fault, "times": self._random.randint(1, most)})

    def _behave(self, *faults: dict[str, Any]) -> None:
        if self._answers:
            accepted = [f"{KEY}{number}" for number in (self._number - 1, self._number)]
            self._bucket.behave(*faults, accepted=accepted)

    def _renew_keys(self) -> None:
        """Refuse the key before the last one from now on; requests with the last one may finish."""
        self._number += 1
        assert self.keys is not None
        self._behave()
        written = self.keys.path.with_suffix(".part")
        written.write_text(json.dumps(self._bucket.patient_options(f"{KEY}{self._number}", SECRET)))
        written.replace(self.keys.path)


@contextmanager
def storage_of(kind: str, folder: Path, seed: int) -> Iterator[Storage]:
    """``local`` or ``s3``."""
    if kind == "local":
        yield Storage(folder)
        return
    with S3Server() as server:
        yield StorageOnS3(server, folder, seed)
