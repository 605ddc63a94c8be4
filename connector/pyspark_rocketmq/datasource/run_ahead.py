"""A generator that runs ahead in a thread of its own: the next is made while the caller uses what it has."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

_LOOK_S: Final = 0.5
"""How often the thread looks whether the caller has left."""
_STOP_S: Final = 10.0
"""How long a caller that leaves waits for the thread to be done."""


class _End(NamedTuple):
    """Behind the last."""

    error: BaseException | None
    """What was raised in place of more."""


def run_ahead(made: Generator[T], *, name: str) -> Generator[T]:
    """The same values, each made while the caller has the one before; never more than one ahead.

    The generator is run and closed by a daemon thread, which ends with it or soon after the caller closes this one.
    What has been yielded is not kept. An error comes where the value would have come.
    """
    ready: queue.Queue[T | _End] = queue.Queue(maxsize=1)
    has_left = threading.Event()
    thread = threading.Thread(target=_run, args=(made, ready, has_left), name=name, daemon=True)
    thread.start()
    try:
        while not isinstance(value := ready.get(), _End):
            yield value
            del value
        if value.error is not None:
            raise value.error
    finally:
        has_left.set()
        # Room for what it may want to hand over just now.
        while not ready.empty():
            ready.get_nowait()
        thread.join(_STOP_S)


def _run(made: Generator[T], ready: queue.Queue[T | _End], has_left: threading.Event) -> None:
    error: BaseException | None = None
    try:
        while not has_left.is_set():
            try:
                value = next(made)
            except StopIteration:
                break
            _hand_over(value, ready, has_left)
            del value
        made.close()
    except BaseException as raised:  # noqa: BLE001 - it is the caller's
        error = raised
    _hand_over(_End(error), ready, has_left)


def _hand_over(value: T | _End, ready: queue.Queue[T | _End], has_left: threading.Event) -> None:
    while not has_left.is_set():
        try:
            ready.put(value, timeout=_LOOK_S)
        except queue.Full:
            continue
        return
