"""Calls to several servers at the same time, so that one that does not answer costs the others nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make all calls, each on a thread of its own; returns when the last one has.

    A call must not raise, and must end by a deadline of its own.
    """
    started = []
    for call in calls[1:]:
        thread = threading.Thread(target=call, name="rocketmq-group-call", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # From Python 3.12 on a process that is about to end starts no threads: one after the other, then.
            call()
        else:
            started.append(thread)
    for call in calls[:1]:
        call()
    for thread in started:
        thread.join()
