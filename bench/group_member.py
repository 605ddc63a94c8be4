"""A member of a group that shares a topic's queues, also in its own process, which can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.group.join import join_group
from pyspark_rocketmq.group.member import RunningMember
from pyspark_rocketmq.model import is_retry_topic
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions

_STOP_S = 10.0


def join(name_servers: str, topic: str, name: str) -> RunningMember:
    """A running member of the group ``bench``."""
    store = MemoryOffsetStore("bench", clock=SystemClock())
    options = ReadOptions.parse(
        {"nameServers": name_servers, "topic": topic, "consumerGroup": "bench", "offsetStore": store.spec}
    )
    member = join_group(options, name, store, SystemClock())
    member.start()
    return member


def plannable(member: RunningMember) -> int:
    """Queues of its topic that the member could put into a plan now;
    those of the group's retry topic come and go.
    """
    queues = member.planned(member.begin_plan())
    return sum(not is_retry_topic(queue.topic) for queue in queues)


@contextmanager
def member_process(name_servers: str, topic: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process with such a member, and kill it at the end if it is running."""
    command = [sys.executable, "-m", "bench.group_member", name_servers, topic, name]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        yield process
    finally:
        process.kill()
        process.wait(_STOP_S)


if __name__ == "__main__":
    member = join(*sys.argv[1:])
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    member.stop(_STOP_S)
