"""A listener for job ``consume``: the first worker process that has
consumed enough waits for its machine to die.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pyspark_rocketmq as rmq

FOLDER = "DOOMED_FOLDER"
"""Variable of the executors' environment: where the doomed worker leaves its process id,
in a file ``doomed``.
"""
DELIVERED_BEFORE = 250
"""Messages: more than one micro-batch of the test has, so that an earlier one was committed."""
_WAITS_S = 120.0

_delivered = count(1)


def on_orders(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """Emit what is read."""
    for message in messages:
        order_id, _, step = message.body.decode().partition(":")
        context.emit(order_id=order_id, step=step, delivered_ns=time.time_ns())
        if next(_delivered) == DELIVERED_BEFORE:
            _await_death_if_first()
    return rmq.ConsumeOrderlyStatus.SUCCESS


def _await_death_if_first() -> None:
    folder = Path(os.environ[FOLDER])
    note = folder / f"{os.getpid()}.note"
    note.write_text(str(os.getpid()))
    try:
        # Appears whole, and for one process alone.
        os.link(note, folder / "doomed")
    except FileExistsError:
        return
    time.sleep(_WAITS_S)
