"""Leaves a group when the process ends, so that others have its queues within seconds and not within a minute.

Spark ends the process that plans a query with SIGTERM and calls nothing of ours; if the driver dies, the process
sees its end and exits by itself.  Only after ``kill -9`` of this very process do the brokers have to wait.
"""

from __future__ import annotations

import atexit
import os
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
        _leave()
        if callable(before):
            before(number, frame)
        else:
            # As if there had been no handler: nothing else of this process wants to be told.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_sigterm)


def _leave() -> None:
    while _members:
        _members.pop().stop(_WITHIN_S)
