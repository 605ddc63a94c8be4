"""Where a Delta table is: paths, URIs and names of tables, and what a local disk must be able to do.

Without delta-rs and Arrow, so that tasks can import it.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark_rocketmq.display import counted
from pyspark_rocketmq.errors import OptionError

_WITHOUT_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What the system answers where a file system has no hard links."""
_SINGLE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_NAME: Final = re.compile(r"(?:`(?:[^`]|``)+`|\w+)(?:\.(?:`(?:[^`]|``)+`|\w+))*")
_NAME_PART: Final = re.compile(r"`((?:[^`]|``)+)`|(\w+)")
_PLAIN: Final = re.compile(r"\w+")
_BLOB_URI: Final = re.compile(r"wasb(s?)://([^/@]+@[^/.]+)\.blob\.")
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a mount answers that has no ``fsync``."""


class TableName(NamedTuple):
    """A table of a catalog that Spark knows."""

    parts: tuple[str, ...]
    """Schema and table, or catalog, schema and table."""

    def __str__(self) -> str:
        """As SQL has it, with backquotes where they are needed."""
        return ".".join(part if _PLAIN.fullmatch(part) else quoted_name(part) for part in self.parts)

    @property
    def sql(self) -> str:
        """The same with all backquotes, for a word of SQL may be a name, too."""
        return ".".join(map(quoted_name, self.parts))

    @classmethod
    def of(cls, place: str | Path) -> TableName | None:
        """The name that users mean; None if it is a path or a URI, which has a slash.

        Raises:
            OptionError: If it could be either, or is none.
        """
        text = str(place)
        # A part of a name has a slash within backquotes alone, and none begins with it.
        is_path = isinstance(place, Path) or "://" in text or text.startswith(("/", ".", os.sep))
        if is_path or (("/" in text or os.sep in text) and "`" not in text):
            return None
        folder = f"for a folder write './{text}'" if "`" not in text else "for a folder write its path"
        where = "name of a Delta table"
        if _NAME.fullmatch(text) is None:
            problem = (
                f"'{text}' is no name of a table: write SCHEMA.TABLE or CATALOG.SCHEMA.TABLE, with "
                f"backquotes around a part that has other characters than letters, digits and _; {folder}"
            )
            raise OptionError((problem,), where=where)
        found = _NAME_PART.findall(text)
        parts = tuple(quoted.replace("``", "`") or plain for quoted, plain in found)
        if len(parts) == 2 and parts[0].lower() == "delta" and "/" in parts[1]:
            raise OptionError((f"'{text}' is Spark's way to write a path; write '{parts[1]}'",), where=where)
        if len(parts) not in (2, 3):
            problem = (
                f"'{text}' has {counted(len(parts), 'part')}; for a table of a catalog write SCHEMA.TABLE or "
                f"CATALOG.SCHEMA.TABLE, {folder} or an absolute path"
            )
            raise OptionError((problem,), where=where)
        if "`" not in text and Path(text, "_delta_log").is_dir():
            problem = (
                f"'{text}' could be a table of a catalog, or the Delta table in the folder of that name; "
                f"{folder}, for the catalog's {cls(parts).sql}"
            )
            raise OptionError((problem,), where=where)
        return cls(parts)

    @classmethod
    def is_one(cls, place: str | Path) -> bool:
        """Whether ``place`` is a name and nothing else."""
        try:
            return cls.of(place) is not None
        except OptionError:
            return False


def quoted_name(name: str) -> str:
    """A name of Spark's SQL in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def table_uri(path: str | Path) -> str:
    """Return a storage URI as it is and a local path made absolute: other processes work in other folders.

    Raises:
        OptionError: If it is a URI with a single slash, which would be a folder of that name below the one
            that the process works in.
    """
    text = str(path)
    blob = _BLOB_URI.match(text)
    if blob is not None:
        # Hadoop's older name for the same container, which delta-rs does not know.
        return f"abfs{blob[1]}://{blob[2]}.dfs.{text[blob.end() :]}"
    scheme = _SINGLE_SLASH.match(text)
    if scheme is None or isinstance(path, Path):
        return text if "://" in text else str(Path(path).absolute())
    if scheme[1].lower() == "file":
        # As Hadoop writes it, for which a percent sign is one.
        return text[scheme.end() - 1 :]
    rest = text[scheme.end() :]
    if scheme[1].lower() == "dbfs":
        problem = (
            f"'{text}' is a path of Spark's alone; write /dbfs/{rest}, or a folder of a volume: /Volumes/…"
        )
    else:
        problem = (
            f"'{text}' is neither a path nor a URI; write {scheme[1]}://AUTHORITY/{rest}, or for a folder of "
            f"that name ./{text}"
        )
    raise OptionError((problem,), where="path of a table")


def local_path(path: str) -> str | None:
    """The folder on this machine that a path or a URI names; None for other storage."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    # Spark writes dbfs:/… and viewfs:/… with one slash.
    return None if "://" in path or _SINGLE_SLASH.match(path) else path


def check_exclusive_create(uri: str) -> None:
    """Refuse a folder of this machine in which two writers could create the same file.

    A Delta commit is a file that only one writer may create.  On a disk delta-rs links it into place, which
    fails if the name is taken; Databricks' volumes and many FUSE mounts have no links.

    Raises:
        OptionError: If links cannot be made there.  A folder that is missing or cannot be written is left to
            the first commit.
    """
    folder = local_path(uri)
    if folder is None:
        return
    try:
        # Delta ignores names that begin so, if a process dies in between.
        with NamedTemporaryFile(prefix="_rocketmq-", dir=folder) as probe:
            os.link(probe.name, f"{probe.name}.link")
            Path(f"{probe.name}.link").unlink()
    except OSError as exc:
        if exc.errno in _WITHOUT_LINKS:
            problem = (
                f"{folder} is on storage that cannot create a file exclusively ({exc.strerror}), so two "
                "writers could overwrite each other's commits. Volumes and FUSE mounts are such. Name the "
                "table by the storage's own address (s3://…, abfss://…, gs://…), or put it on a disk or a "
                "network mount that has hard links."
            )
            raise OptionError((problem,), where="path of a table") from exc


def fsync_path(path: str | Path) -> None:
    """Wait until a file or folder of this machine is on its disk, and would be there after a power cut.

    Raises:
        OSError: If the disk did not take it.
    """
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(opened)
