"""UNIQ_KEYs for the messages a producer sends: who, when, and a counter."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time

from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.wire.message_id import unique_key

_ANY_REMOTE = ("192.0.2.1", 9)
"""A documentation address (RFC 5737): connecting a UDP socket to it sends nothing, but picks the outgoing interface."""


class UniqueKeys:
    """Makes keys no other producer makes at the same time. Shared by any number of threads.

    Source: RocketMQ 5.3.3 ``MessageClientIDSetter``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ip = local_ip()
        self._pid = os.getpid()
        # Java takes the class loader's hash, which tells two producers of one process apart as well.
        self._hash_code = random.SystemRandom().getrandbits(32)
        self._counter = itertools.count()

    def next(self) -> str:
        """A new key."""
        now_s = self._clock.now_s()
        since_ms = int((now_s - month_start_s(now_s)) * 1000)
        return unique_key(self._ip, self._pid, self._hash_code, since_ms, next(self._counter))


def month_start_s(now_s: float) -> float:
    """The first instant of the current local month, in seconds since the epoch."""
    local = time.localtime(now_s)
    return time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))


def local_ip() -> bytes:
    """The IPv4 address other machines see, 4 bytes; the loopback address when there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_REMOTE)
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return socket.inet_aton("127.0.0.1")
