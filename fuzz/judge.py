"""One input, one verdict: which exception, how long, how much memory.

Memory is limited by a limit on the process's writable memory, set again for each input, so that an input that needs
more ends in ``MemoryError``. Time is limited by a timer whose signal raises. Neither stops an endless loop in C or a
crash, which is noticed from outside: see :mod:`fuzz.run`.
"""

from __future__ import annotations

import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Final

import pyarrow as pa

from fuzz.target import Target
from pyspark_rocketmq.errors import RemoteProtocolError

_PAGE_BYTES: Final = resource.getpagesize()
_DATA_AND_STACK: Final = 5
_ALLOCATOR_BYTES: Final = 4 << 20
"""Memory that allocators map in addition to the requested memory."""


class TookTooLong(BaseException):
    """Raised into an input that runs past its deadline; no handler of the code under test may catch it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that broke the promise."""

    target: str
    data: bytes
    trace: str

    @property
    def place(self) -> str:
        """The error and the line it came from, which distinguish findings with different causes."""
        lines = self.trace.strip().splitlines()
        at = [line.strip() for line in lines if line.lstrip().startswith("File ")]
        return f"{lines[-1][:60]} {at[-1] if at else ''}"

    @property
    def name(self) -> str:
        """Name of the file that keeps the input."""
        return f"{self.target}-{sha256(self.data).hexdigest()[:12]}.bin"

    def save(self, folder: Path) -> Path:
        """Keep the input, and its trace beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        path.write_bytes(self.data)
        path.with_suffix(".txt").write_text(self.trace, encoding="utf-8", errors="backslashreplace")
        return path


def judge(target: Target, data: bytes) -> Finding | None:
    """Run one input; must be called on the main thread."""
    try:
        with _deadline(target), _memory(target):
            target.run(data)
    except RemoteProtocolError:
        return None
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - whatever it is, it is the finding
        return Finding(target.name, data, traceback.format_exc(limit=-12))
    return None


@contextmanager
def _deadline(target: Target) -> Iterator[None]:
    timer, number = (
        (signal.ITIMER_REAL, signal.SIGALRM)
        if target.is_conversation
        else (signal.ITIMER_VIRTUAL, signal.SIGVTALRM)
    )

    def expired(_number: int, _frame: FrameType | None) -> None:
        raise TookTooLong(f"more than {target.max_seconds:g} s")

    before = signal.signal(number, expired)
    # Another timer, such as that of a test run, continues afterwards.
    others = signal.setitimer(timer, target.max_seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
        signal.setitimer(timer, *others)


@contextmanager
def _memory(target: Target) -> Iterator[None]:
    # Not the address space: malloc reserves 64 MiB of it for each thread and uses some kilobytes.
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _writable_bytes() + target.max_memory_bytes + _ALLOCATOR_BYTES
    # Arrow's own pools keep their memory; only malloc releases it, so that the next input's limit is right.
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        pa.set_memory_pool(pool)


def _writable_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[_DATA_AND_STACK]) * _PAGE_BYTES
