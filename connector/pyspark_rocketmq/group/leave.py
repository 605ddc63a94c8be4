"""Leaves a group when the process ends, so that others have its queues within seconds and not within a minute.

Spark ends the process that plans a query with SIGTERM and calls nothing of ours; if the driver dies, the process
sees its end and exits by itself.  Only after ``kill -9`` of this very process do the brokers have to wait.
"""

from __future__ import annotations

import atexit
import signal
import threading
import types
from typing import Final

from pyspark_rocketmq.group.member import RunningMember

_WITHIN_S: Final = 3.0

_members: list[RunningMember] = []


def leave_at_the_end(member: RunningMember) -> None:
    """Stop ``member`` when this process exits or gets SIGTERM."""
    if not _members:
        atexit.register(_leave)
        if threading.current_thread() is threading.main_thread():
            _install()
    _members.append(member)


def _install() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def on_sigterm(number: int, frame: types.FrameType | None) -> None:
        # The main thread may hold any lock at this moment, so nothing may be waited for before it is out of there.
        for member in _members:
            member.stop_soon()
        if callable(before):
            before(number, frame)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, on_sigterm)


def _leave() -> None:
    while _members:
        _members.pop().stop(_WITHIN_S)
