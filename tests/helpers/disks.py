"""Separate file systems for a test, which can be full or read-only for any user, also root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_SIZE = "8m"


class Disk:
    """A small file system in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no byte free."""
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass

    def make_room(self) -> None:
        """Undo :meth:`fill`."""
        self._filler.unlink()

    def make_read_only(self) -> None:
        """Refuse every change; fails while a file is being written."""
        _run("mount", "-o", "remount,ro", str(self.path))

    def make_writable(self) -> None:
        """Undo :meth:`make_read_only`."""
        _run("mount", "-o", "remount,rw", str(self.path))


@contextmanager
def disk_at(path: Path) -> Iterator[Disk]:
    """Yield a disk mounted at a new folder; without the right to mount one, the test is skipped."""
    path.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "none", str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs the right to mount a file system: {error}")
    try:
        yield Disk(path)
    finally:
        # Lazily: files that the test has left open go when they are closed.
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
