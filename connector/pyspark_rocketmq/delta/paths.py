"""Paths, URIs and names of Delta tables, and a check that a local disk can create files exclusively.

Loads neither delta-rs nor Arrow, so that tasks can import it.
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
"""Error numbers of a file system without hard links."""
_SINGLE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_NAME: Final = re.compile(r"(?:`(?:[^`]|``)+`|\w+)(?:\.(?:`(?:[^`]|``)+`|\w+))*")
_NAME_PART: Final = re.compile(r"`((?:[^`]|``)+)`|(\w+)")
_PLAIN: Final = re.compile(r"\w+")
_BLOB_URI: Final = re.compile(r"wasb(s?)://([^/@]+@[^/.]+)\.blob\.")
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Error numbers of a mount without ``fsync``."""


class TableName(NamedTuple):
    """The name of a table in one of Spark's catalogs."""

    parts: tuple[str, ...]
    """Schema and table, or catalog, schema and table."""

    def __str__(self) -> str:
        """Return the name as SQL writes it, with backquotes only where they are needed."""
        return ".".join(part if _PLAIN.fullmatch(part) else quoted_name(part) for part in self.parts)

    @property
    def sql(self) -> str:
        """The name with every part in backquotes, because a part may be a word of SQL, such as ``table``."""
        return ".".join(map(quoted_name, self.parts))

    @classmethod
    def of(cls, place: str | Path) -> TableName | None:
        """Read ``place`` as a table's name; return None for a path or a URI.

        Paths and URIs are: a ``Path``; a text with ``://``; a text that begins with a slash or a dot; a
        text with a slash and without backquotes.

        Raises:
            OptionError: If ``place`` could be both a name and a folder, or is not a valid name.
        """
        text = str(place)
        # Within a name a slash occurs only between backquotes, so a name cannot begin with one.
        is_path = isinstance(place, Path) or "://" in text or text.startswith(("/", ".", os.sep))
        if is_path or (("/" in text or os.sep in text) and "`" not in text):
            return None
        folder = f"for a folder write './{text}'" if "`" not in text else "for a folder write its path"
        where = "name of a Delta table"
        if _NAME.fullmatch(text) is None:
            problem = (
                f"'{text}' is not the name of a table: write SCHEMA.TABLE or CATALOG.SCHEMA.TABLE, and put "
                "backquotes around a part with characters other than letters, digits and _; "
                f"{folder}"
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
                f"'{text}' may be the name of a catalog's table, or the folder of that name with a Delta "
                f"table; {folder}, for the catalog's table {cls(parts).sql}"
            )
            raise OptionError((problem,), where=where)
        return cls(parts)

    @classmethod
    def is_name(cls, place: str | Path) -> bool:
        """Return whether ``place`` is a table's name; False for paths, URIs, invalid and ambiguous names."""
        try:
            return cls.of(place) is not None
        except OptionError:
            return False


def quoted_name(name: str) -> str:
    """Return a name in backquotes for Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def table_uri(path: str | Path) -> str:
    """Return a storage URI as it is, and a local path as an absolute one.

    A relative path would mean another folder in another process.  A ``wasb`` URI is returned as ``abfs``, and
    ``file:/…`` as a path.

    Raises:
        OptionError: If ``path`` is any other URI with a single slash, such as ``s3:/…``.  As a path, such a
            text would name a folder below the current one.
    """
    text = str(path)
    blob = _BLOB_URI.match(text)
    if blob is not None:
        # Hadoop's older name for the same container; delta-rs refuses it.
        return f"abfs{blob[1]}://{blob[2]}.dfs.{text[blob.end() :]}"
    scheme = _SINGLE_SLASH.match(text)
    if scheme is None or isinstance(path, Path):
        return text if "://" in text else str(Path(path).absolute())
    if scheme[1].lower() == "file":
        # Hadoop writes it this way, and does not decode percent signs in it.
        return text[scheme.end() - 1 :]
    rest = text[scheme.end() :]
    if scheme[1].lower() == "dbfs":
        problem = f"only Spark understands '{text}'; write /dbfs/{rest}, or a folder of a volume: /Volumes/…"
    else:
        problem = (
            f"'{text}' is neither a path nor a URI; write {scheme[1]}://AUTHORITY/{rest}, or for a folder of "
            f"that name ./{text}"
        )
    raise OptionError((problem,), where="table path")


def expanded_uri(text: str) -> str:
    """Return a URI as it is, and a path, in which ``~`` is the user's home folder, as an absolute one.

    Raises:
        OptionError: For the reasons of :func:`table_uri`.
    """
    if "://" in text:
        return text
    return table_uri(text if has_one_slash(text) else Path(text).expanduser())


def has_one_slash(uri: str) -> bool:
    """Return whether a text is a URI with a single slash, as Spark writes ``file:/…`` and ``dbfs:/…``."""
    return _SINGLE_SLASH.match(uri) is not None


def local_path(path: str) -> str | None:
    """Return the folder on this machine that a path or a URI names; None for other storage."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path or has_one_slash(path) else path


def check_decodes_alike(uri: str) -> None:
    """Refuse a local folder whose path looks URL-encoded: delta-rs would decode it and use another folder.

    Raises:
        OptionError: If the path has a percent sign with two hexadecimal digits.
    """
    folder = local_path(uri)
    encoded = None if folder is None else _ENCODED.search(folder)
    if encoded is not None:
        problem = (
            f"{folder} has {encoded[0]}, for which delta-rs reads '{unquote(encoded[0])}', so it cannot make "
            "a table there. Give the folder another name."
        )
        raise OptionError((problem,), where="table path")


def check_exclusive_create(uri: str) -> None:
    """Refuse a folder of this machine in which two writers could both create the same file.

    A Delta commit is a file that only one writer may create.  On a disk, delta-rs gives the file its name by
    a hard link, which fails if the name is taken. Databricks' volumes and many FUSE mounts have no links.

    Raises:
        OptionError: If links cannot be created in the folder.  If it is missing or cannot be written, there
            is no error here; the first commit reports it.
    """
    folder = local_path(uri)
    if folder is None:
        return
    try:
        # Delta ignores names with this prefix, so the file does no harm if the process dies here.
        with NamedTemporaryFile(prefix="_rocketmq-", dir=folder) as probe:
            os.link(probe.name, f"{probe.name}.link")
            Path(f"{probe.name}.link").unlink()
    except OSError as exc:
        if exc.errno in _WITHOUT_LINKS:
            problem = (
                f"{folder} is on storage that cannot create a file exclusively ({exc.strerror}), so two "
                "writers could overwrite each other's commits. Databricks volumes and many FUSE mounts are "
                "like this. Name the table by the storage's own address (s3://…, abfss://…, gs://…), or put "
                "it on a disk or a network mount that has hard links."
            )
            raise OptionError((problem,), where="table path") from exc


def fsync_path(path: str | Path) -> None:
    """Wait until a file or folder of this machine is on its disk, so that it survives a power cut.

    On a mount without ``fsync`` this does not wait.

    Raises:
        OSError: If the path could not be written to the disk.
    """
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(opened)
