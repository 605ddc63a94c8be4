"""UNIQ_KEYs for the messages a producer sends: who, when, and a counter."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time

from pyspark_rocketmq.client.after_fork import renew_in_children
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.wire.message_id import unique_key

_ANY_REMOTE = ("192.0.2.1", 9)
"""A documentation address (RFC 5737): connecting a UDP socket to it sends nothing, but picks the outgoing interface."""

_TIME_AND_COUNTER_DIGITS = 12
_MORE_THAN_A_MONTH_S = 32 * 86_400.0
"""From a month's begin into the next one."""


class UniqueKeys:
    """Makes keys no other producer makes at the same time. Shared by any number of threads.

    Source: RocketMQ 5.3.3 ``MessageClientIDSetter``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._month = (0.0, 0.0)
        """Begin of the current month and of the next one."""
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of ``fork()`` as at first: another maker."""
        # Java takes the class loader's hash, which tells two producers of one process apart as well.
        hash_code = random.SystemRandom().getrandbits(32)
        self._maker = unique_key(local_ip(), os.getpid(), hash_code, 0, 0)[:-_TIME_AND_COUNTER_DIGITS]
        self._counter = itertools.count()

    def next(self) -> str:
        """A new key."""
        now_s = self._clock.now_s()
        begin_s, end_s = self._month
        if not begin_s <= now_s < end_s:
            begin_s = month_start_s(now_s)
            self._month = (begin_s, month_start_s(begin_s + _MORE_THAN_A_MONTH_S))
        since_ms = int((now_s - begin_s) * 1000)
        return f"{self._maker}{since_ms & 0xFFFFFFFF:08X}{next(self._counter) & 0xFFFF:04X}"


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
