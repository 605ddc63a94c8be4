"""A Delta table through delta-rs: columns and features, queries, a handle per thread.

Names of features are those of the Delta protocol (``PROTOCOL.md``, "Valid Feature Names in Table Features").

Do not import this on executors: if a process imports delta-rs and forks later, its children fail.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from pyspark_rocketmq.clock import Clock, SystemClock, commit_with_retry
from pyspark_rocketmq.delta.ddl import NOT_NULL, metadata_keys_within, type_ddl
from pyspark_rocketmq.delta.log import CommitFile, LogFiles
from pyspark_rocketmq.delta.paths import check_exclusive_create, local_path
from pyspark_rocketmq.delta.storage_options import NO_OPTIONS, StorageOptions
from pyspark_rocketmq.display import masked

logger = logging.getLogger(__name__)

T = TypeVar("T")

STORAGE_ERRORS = (DeltaError, OSError)
"""Errors of delta-rs when a table or its storage does not answer; those of storage are ``OSError``."""

_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before remote storage is asked again."""
_TIMES_OPENED: Final = 9
"""Attempts to open a local table before its error is raised; see :func:`open_table`."""
SURELY_KEPT_S: Final = 3600.0
"""Look for newer commits if the last look is older than this.

Delta keeps commits for 30 days unless a table's properties say otherwise.
"""

_LEGACY_WRITER_FEATURES = (
    (2, "appendOnly"),
    (2, "invariants"),
    (3, "checkConstraints"),
    (4, "changeDataFeed"),
    (4, "generatedColumns"),
    (5, "columnMapping"),
    (6, "identityColumns"),
)
"""Features that a writer version below 7 implies (``PROTOCOL.md``, "Requirements for Writers")."""
_TABLE_FEATURES_VERSION = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One top-level column as the log's schema has it."""

    name: str
    type: str
    """Delta's type name; SQL text when the type is nested."""
    is_nullable: bool = True
    metadata: Mapping[str, Any]
    marks_within: frozenset[str] = frozenset()
    """Metadata keys of the fields within the type, except comments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """A table's columns, properties and features, by its newest metadata and protocol actions."""

    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    features: frozenset[str]
    """Features that a writer must support, whether they are in use or not."""

    @property
    def column_types(self) -> dict[str, str]:
        """Type by column name."""
        return {column.name: column.type for column in self.columns}

    @property
    def has_column_mapping(self) -> bool:
        """Whether the files' column names differ from the table's."""
        return self.configuration.get("delta.columnMapping.mode", "none") != "none"


def parse_columns(schema_json: str) -> tuple[Column, ...]:
    """Read the columns from the ``schemaString`` of a metadata action."""
    return tuple(
        Column(
            name=field["name"],
            type=field["type"] if isinstance(field["type"], str) else type_ddl(field["type"]),
            is_nullable=field.get("nullable", True),
            metadata=field.get("metadata") or {},
            marks_within=metadata_keys_within(field["type"]),
        )
        for field in json.loads(schema_json)["fields"]
    )


def writer_features(
    min_writer_version: int, named_writer: Iterable[str] | None, named_reader: Iterable[str] | None
) -> frozenset[str]:
    """Return the features of a protocol action: those it names, or those an old version number implies."""
    if min_writer_version >= _TABLE_FEATURES_VERSION:
        return frozenset(named_writer or ()) | frozenset(named_reader or ())
    return frozenset(name for version, name in _LEGACY_WRITER_FEATURES if version <= min_writer_version)


def column_differences(wanted: Mapping[str, str], found: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Describe how ``found``, the types of the columns in ``where``, differ from ``wanted``.

    Return an empty tuple if they do not differ.
    """
    missing = [f"{name} {type_ddl(wanted[name])}" for name in wanted if name not in found]
    superfluous = [f"{name} {type_ddl(found[name])}" for name in found if name not in wanted]
    differing = [
        f"{name} is {type_ddl(found[name])} instead of {type_ddl(wanted[name])}"
        for name in wanted
        if name in found and not _fits(wanted[name], found[name])
    ]
    parts = (
        (f"missing in {where}", missing),
        (f"only in {where}", superfluous),
        ("of another type", differing),
    )
    return tuple(f"{title}: {', '.join(names)}" for title, names in parts if names)


def _fits(wanted: str, found: str) -> bool:
    """Whether ``found`` can hold values of type ``wanted``; it may allow nulls where ``wanted`` does not."""
    return found in (wanted, wanted.replace(NOT_NULL, ""))


def as_nullable(field: pa.Field) -> pa.Field:
    """Return the column with nulls allowed at every depth."""
    return pa.field(field.name, _nullable_type(field.type), metadata=field.metadata)


def _nullable_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([as_nullable(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_nullable_type(type_.key_type), as_nullable(type_.item_field))
    if pa.types.is_list(type_):
        return pa.list_(as_nullable(type_.value_field))
    if pa.types.is_large_list(type_):
        return pa.large_list(as_nullable(type_.value_field))
    return type_


def ask_patiently(
    what: str, uri: str, storage: StorageOptions, ask: Callable[[], T], sleep: Callable[[float], object]
) -> T:
    """Return ``ask()``; call it again if remote storage does not answer.

    Within each call delta-rs itself tries twenty times, which takes some ten seconds, unless the storage
    options say otherwise.

    Raises:
        DeltaError, OSError: If the storage still does not answer.
    """
    pauses_s = _PAUSES_S if local_path(uri) is None else ()

    def attempt(_: Exception | None) -> T:
        try:
            return ask()
        except STORAGE_ERRORS as error:
            # This removes secrets from the error before it is logged.
            storage.describe_error(error)
            raise

    return commit_with_retry(what, attempt, pauses_s, sleep, unknown=STORAGE_ERRORS)


def open_table(uri: str, storage: StorageOptions = NO_OPTIONS, *, version: int | None = None) -> DeltaTable:
    """Open a table, its newest version by default, with the storage options as last renewed.

    delta-rs lists the log's folder, which takes a while if it is large.  If two commits are made meanwhile, a
    local disk may list only the later one, and delta-rs then reports a gap in the log.  So this tries again.

    Raises:
        DeltaError: If there is no table, or its storage does not answer.
    """
    options = storage.values_for(uri)
    for _ in range(_TIMES_OPENED if version is None and local_path(uri) is not None else 0):
        try:
            return DeltaTable(uri, storage_options=options)
        except TableNotFoundError:
            raise
        except DeltaError:
            logger.debug("table could not be opened: %s", masked(uri), exc_info=True)
    return DeltaTable(uri, version, storage_options=options)


def create_table(
    uri: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    storage: StorageOptions = NO_OPTIONS,
    **settings: Any,
) -> DeltaTable:
    """Create a table with delta-rs' default protocol (1/2), or open the one that another process created.

    Raises:
        DeltaError: If it could neither be created nor opened.
        OptionError: See :func:`check_exclusive_create`.
    """
    folder = local_path(uri)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    check_exclusive_create(uri)
    # If delta-rs lost the race for version 0 and tried again, version 1 would give the table another id.
    once = CommitProperties(max_commit_retries=0)
    try:
        return DeltaTable.create(
            uri,
            schema=schema,
            partition_by=list(partition_by),
            commit_properties=once,
            storage_options=storage.values_for(uri),
            **settings,
        )
    except DeltaError:
        return open_table(uri, storage)


def sql_literal(text: str) -> str:
    """Return ``text`` as a literal of delta-rs' SQL."""
    return "'" + text.replace("'", "''") + "'"


def query_rows(table: DeltaTable, sql: str) -> pa.Table:
    """Run ``sql`` on the version that ``table`` is at, and return the rows; the table's name is ``rows``.

    Raises:
        DeltaError, OSError: If the table's files cannot be read.
    """
    # QueryBuilder, because delta-rs' Arrow data set reads NULLs from tables with mapped columns. from_stream,
    # because pa.table() loads pandas to see whether its argument is a DataFrame.
    try:
        found = QueryBuilder().register("rows", table).execute(sql).read_all()
    except Exception as error:
        if type(error) is Exception:
            # delta-rs raises a plain Exception for a file that it cannot read from the storage.
            raise DeltaError(str(error)) from error
        raise
    return pa.RecordBatchReader.from_stream(found).read_all()


def read_form(table: DeltaTable) -> TableForm:
    """Return the columns, partitioning, properties and features of the version that ``table`` is at."""
    metadata = table.metadata()
    protocol = table.protocol()
    return TableForm(
        columns=parse_columns(table.schema().to_json()),
        partition_by=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
        features=writer_features(
            protocol.min_writer_version, protocol.writer_features, protocol.reader_features
        ),
    )


class CommitLog(Protocol):
    """A table's commits, read from its files or from a catalog; see ``LogFiles``."""

    @property
    def table_uri(self) -> str:
        """The table's URI, or its name in a catalog."""
        ...

    @property
    def storage(self) -> StorageOptions:
        """Options to reach the table's storage."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the table is on a disk of this machine."""
        ...

    def commit_file(self, version: int) -> CommitFile:
        """Return a mark that distinguishes the commit of a version from another table's."""
        ...

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """Return the information in a commit; None if it is no longer known."""
        ...

    def commit_infos_below(self, version: int) -> Iterator[dict[str, Any]]:
        """Yield ``commit_info`` of the versions below, the newest first."""
        ...

    def last_checkpoint_file(self) -> tuple[int | None, int | None]:
        """Return a mark that changes when a checkpoint is made."""
        ...

    def may_lack_commits_after(self, version: int) -> bool:
        """Whether commits after ``version`` may have been cleaned up."""
        ...


class LogHandle:
    """A thread's view of a table's log: the newest version, and when it was looked up."""

    def __init__(self, log: CommitLog, version: int, clock: Clock | None = None) -> None:
        """Start at ``version``, which was just opened with the storage options of ``log``."""
        self.log = log
        self._values = log.storage.values
        self._clock = clock or SystemClock()
        self._looked_s = self._clock.monotonic_s()
        """Time of the last look for newer commits, monotonic."""
        self._tip = log.commit_file(version)
        self._checkpoint = self._last_checkpoint_file()
        """Size and time, at that look, of the file that names the newest checkpoint."""

    @property
    def version(self) -> int:
        """The version of the table that this handle is at."""
        return self._tip.version

    def renew(self) -> None:
        """Renew the storage options and continue with them at the same version.

        Raises:
            DeltaError: If the storage does not answer.
        """
        self.log.storage.renew()
        self.take_options()

    def take_options(self) -> None:
        """Continue with the storage options as last renewed, if this handle does not use them already.

        Raises:
            DeltaError: If the storage does not answer.
        """
        storage = self.log.storage
        if storage.values is not self._values:
            self._values = storage.values
            self._open_again()

    def is_still_there(self) -> bool:
        """Whether the log still has the very commit that was the newest one at the last look.

        It does not if the table was deleted, created again or put back to an earlier state.  delta-rs does
        not notice another table that has as many commits, and would add a commit to that one's log.
        """
        return self.log.commit_file(self._tip.version) == self._tip

    def may_have_newer(self) -> bool:
        """Whether there may be a newer commit, provided that the table is still there.

        If the next commit is missing, it may have been cleaned up after a checkpoint of a later version.  On
        remote storage only delta-rs can find out, so the answer is always True.
        """
        if not self.log.is_local or self._age_s() > SURELY_KEPT_S:
            return True
        version = self._tip.version
        return self.log.commit_file(version + 1).size is not None or self._may_lack_commits_after(version)

    def refresh(self) -> None:
        """Move to the newest version."""
        looked_s, age_s = self._clock.monotonic_s(), self._age_s()
        # If this raises, the next look does a full refresh.
        self._looked_s = -math.inf
        checkpoint = self._last_checkpoint_file()
        version = self._newest_version(age_s)
        self._looked_s, self._checkpoint = looked_s, checkpoint
        if version != self._tip.version:
            self._tip = self.log.commit_file(version)

    def _last_checkpoint_file(self) -> tuple[int | None, int | None] | None:
        # Only used for local tables; for remote ones it would take two requests.
        return self.log.last_checkpoint_file() if self.log.is_local else None

    def _may_lack_commits_after(self, version: int) -> bool:
        # A checkpoint that the last look has seen is not read again.
        is_known = self.log.last_checkpoint_file() == self._checkpoint
        return not is_known and self.log.may_lack_commits_after(version)

    def _age_s(self) -> float:
        return self._clock.monotonic_s() - self._looked_s

    def _newest_version(self, age_s: float) -> int:
        """Return the newest version; the last look was ``age_s`` seconds ago."""
        raise NotImplementedError

    def _open_again(self) -> None:
        """Open the log and table again at the same version, with the current storage options."""
        raise NotImplementedError


class TableHandle(LogHandle):
    """A table at its newest version, for one thread.

    A commit is checked against the version that the table is at, so threads must not share it.
    """

    log: LogFiles

    def __init__(
        self, table: DeltaTable, clock: Clock | None = None, storage: StorageOptions = NO_OPTIONS
    ) -> None:
        super().__init__(LogFiles(table.table_uri, storage), int(table.version()), clock)
        self.table = table

    def _newest_version(self, age_s: float) -> int:  # noqa: ARG002 - delta-rs always looks
        self.table.update_incremental()
        return int(self.table.version())

    def _open_again(self) -> None:
        self.log = LogFiles(self.log.table_uri, self.log.storage)
        self.table = open_table(self.log.table_uri, self.log.storage, version=self.version)


HandleT = TypeVar("HandleT", bound=LogHandle)


class HandlePerThread(Generic[HandleT]):
    """The handles on one table, one for each thread that uses it."""

    def __init__(self, open_handle: Callable[[], HandleT]) -> None:
        self._open = open_handle
        self._local = threading.local()

    def newest(self) -> HandleT:
        """Return this thread's handle, moved to the newest version; raise the errors of ``open_handle``."""
        handle: HandleT | None = getattr(self._local, "handle", None)
        if handle is not None:
            try:
                handle.take_options()
                if handle.is_still_there():
                    if handle.may_have_newer():
                        handle.refresh()
                    return handle
                logger.warning("table is not what it was: %s", masked(handle.log.table_uri))
            except STORAGE_ERRORS as error:
                # An idle handle may need log files that were cleaned up since: open again from a checkpoint.
                handle.log.storage.describe_error(error)
                logger.info("to be opened again: %s", masked(handle.log.table_uri), exc_info=True)
        return self.keep(self._open())

    def keep(self, handle: HandleT) -> HandleT:
        """Make ``handle`` this thread's handle."""
        self._local.handle = handle
        return handle

    def forget(self) -> None:
        """Open the table again at the next use."""
        self._local = threading.local()
