"""A listener for job ``consume`` that holds each call until it is let go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyspark_rocketmq as rmq
from pyspark_rocketmq.hub import task_end
from tests.helpers.wait import wait_until

FOLDER = "HELD_FOLDER"
"""Variable of the environment: where a call leaves a file with the message's body as its name,
and waits for ``go``, and then until its task was asked to end.
"""


def _is_told_to_end() -> bool:
    tasks = [task for each in task_end._connections.values() for task in each._tasks.values()]
    return any(task._all for task in tasks)


def on_message(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """Emit the messages."""
    folder = Path(os.environ[FOLDER])
    for message in messages:
        (folder / message.body.decode()).touch(exist_ok=False)
        wait_until((folder / "go").exists)
        wait_until(_is_told_to_end)
        context.emit(text=message.body.decode())
    return rmq.ConsumeOrderlyStatus.SUCCESS
