"""A listener for job ``consume`` that holds each call until it is let go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyspark_rocketmq as rmq
from tests.helpers.wait import wait_until

FOLDER = "HELD_FOLDER"
"""Variable of the environment: where a call leaves a file with the message's body as its name,
and waits for ``go``.
"""


def on_message(
    messages: Sequence[rmq.MessageExt], context: rmq.ConsumeOrderlyContext
) -> rmq.ConsumeOrderlyStatus:
    """Emit what is read."""
    folder = Path(os.environ[FOLDER])
    for message in messages:
        (folder / message.body.decode()).touch(exist_ok=False)
        wait_until((folder / "go").exists)
        context.emit(text=message.body.decode())
    return rmq.ConsumeOrderlyStatus.SUCCESS
