"""Where a Delta table is: paths, URIs and file systems; without delta-rs, so that tasks can import it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from pyspark_rocketmq.errors import OptionError

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
