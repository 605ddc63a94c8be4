"""Lets a run of tests that hangs show where."""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Final

ASKS_FOR_STACKS: Final = signal.SIGUSR1


def print_when_asked() -> None:
    """Print the stacks of all threads to standard error at each :data:`ASKS_FOR_STACKS`.

    Call it from ``pytest_configure``, before pytest captures output.
    """
    faulthandler.register(ASKS_FOR_STACKS, file=os.fdopen(os.dup(2), "w"), all_threads=True)
