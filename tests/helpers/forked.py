"""Work done in a child of ``fork()``."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from collections.abc import Callable
from typing import Any

from tests.helpers.wait import PATIENCE_S


def in_child(work: Callable[[], Any]) -> Any:
    """Do ``work`` in a child; return or raise what it returned or raised, which must be picklable.

    Raises:
        AssertionError: If the child did not end, for example because of a lock that nobody releases.
    """
    return begin_child(work)()


def begin_child(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do ``work`` in a child; return a function that waits for its outcome as :func:`in_child`."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks in processes with threads, which is under test.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run(work, sending)
    os.close(sending)

    def outcome() -> Any:
        with os.fdopen(receiving, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        assert told, f"the child did not end within {2 * PATIENCE_S:g} s"
        found = pickle.loads(told)
        if isinstance(found, BaseException):
            raise found
        return found

    return outcome


def _run(work: Callable[[], Any], sending: int) -> None:
    """Run the work and exit; never return, so that nothing of pytest runs twice."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(2 * PATIENCE_S))
    try:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            found = error
        with os.fdopen(sending, "wb") as pipe:
            pipe.write(pickle.dumps(found))
    finally:
        os._exit(0)
