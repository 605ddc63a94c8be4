"""Folders for brokers' files, where a broker finds room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.real_broker.errors import HarnessError

_ROOMY = 0.80
"""From 85 % on a broker deletes messages before their time, from 90 % on it takes none; no setting lifts that
(``DefaultMessageStore.CleanCommitLogService``). The tests need some of the rest themselves."""
_MEMORY = Path("/dev/shm")


def used_share(folder: Path) -> float:
    """The used share, 0 to 1, of the file system, as a broker counts: what only root may fill is used."""
    usage = shutil.disk_usage(folder)
    return usage.used / max(1, usage.used + usage.free)


def new_home(prefix: str, *, used: Callable[[Path], float] = used_share) -> Path:
    """A new temporary folder on the disk, or in memory if the disk is nearly full.

    Raises:
        HarnessError: If both are; the text names the shares.
    """
    disk = Path(tempfile.gettempdir())
    shares = {each: used(each) for each in (disk, _MEMORY) if each.is_dir()}
    for folder, share in shares.items():
        if share < _ROOMY:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    said = ", ".join(f"{folder} {share * 100:.0f} %" for folder, share in shares.items())
    raise HarnessError(
        f"A RocketMQ broker takes no messages on a disk that is 90 % full, and these are nearly: {said}. "
        "Make room there, or name a folder of another disk in TMPDIR."
    )
