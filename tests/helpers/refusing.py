"""An address that refuses connections for as long as a test needs it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing_address() -> Iterator[str]:
    """``host:port`` that nobody listens on, nor can before the block ends.

    A port that was closed a moment ago may be anybody's by now.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
