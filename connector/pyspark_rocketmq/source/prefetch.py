"""Makes values in another thread, at most two ahead of the caller."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

_CHECK_S: Final = 0.5
"""How often the prefetching thread checks whether the caller has left."""
_STOP_S: Final = 10.0
"""How long a caller that leaves waits for the prefetching thread to end."""


class _End(NamedTuple):
    """End of the values; follows the last one."""

    error: BaseException | None
    """Raised in place of further values; None if there is no error."""


def prefetch(made: Generator[T], *, name: str) -> Generator[T]:
    """Yield the values of ``made``, and make at most two further ones while the caller works on a value.

    A daemon thread runs and closes ``made``. The thread ends when ``made`` does, or soon after the caller
    closes this generator. No yielded value is kept. An error of ``made`` is raised here in place of a value.
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
        # Make room for the value that the thread may be handing over.
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
    except BaseException as raised:  # noqa: BLE001 - raised again in the caller's thread
        error = raised
    _hand_over(_End(error), ready, has_left)


def _hand_over(value: T | _End, ready: queue.Queue[T | _End], has_left: threading.Event) -> None:
    while not has_left.is_set():
        try:
            ready.put(value, timeout=_CHECK_S)
        except queue.Full:
            continue
        return
