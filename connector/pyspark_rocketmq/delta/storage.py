"""Where a Delta table is: paths, URIs and file systems; without delta-rs, so that tasks can import it."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from pyspark_rocketmq.errors import OptionError

_WITHOUT_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""What the system answers where a file system has no hard links."""
_SINGLE_SLASH: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


def table_uri(path: str | Path) -> str:
    """Return a storage URI as it is and a local path made absolute: other processes work in other folders.

    Raises:
        OptionError: If it is a URI with a single slash, which would be a folder of that name below the one
            that the process works in.
    """
    text = str(path)
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


def folder_here(path: str) -> str | None:
    """The folder on this machine that a path or a URI names; None for other storage."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path else path


def check_exclusive_create(uri: str) -> None:
    """Refuse a folder of this machine in which two writers could create the same file.

    A Delta commit is a file that only one writer may create.  On a disk delta-rs links it into place, which
    fails if the name is taken; Databricks' volumes and many FUSE mounts have no links.

    Raises:
        OptionError: If links cannot be made there.  A folder that is missing or cannot be written is left to
            the first commit.
    """
    folder = folder_here(uri)
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


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and folder of a table.

    Raises:
        OptionError: If ``pyarrow.fs`` does not know the URI's scheme.
    """
    if "://" not in uri:
        return fs.LocalFileSystem(), str(Path(uri).absolute())
    # Spark's name for S3; Arrow knows the plain one only.
    known = "s3" + uri.removeprefix("s3a") if uri.startswith("s3a://") else uri
    try:
        filesystem, folder = fs.FileSystem.from_uri(known)
    except (pa.ArrowException, ValueError) as exc:
        problem = f"Files cannot be written to {uri}: {exc} Use a path or a URI that pyarrow.fs knows."
        raise OptionError((problem,), where="Delta sink") from exc
    return filesystem, folder.rstrip("/")
