"""A process with a member of a group, as the one is that plans a query:
``python -m tests.group.leaving_driver``.

Takes name servers, topic and group; says ``settled``, then waits for its standard input to end.
With a fourth argument it waits with the member's lock in its hands, where a signal may well find it.
"""

from __future__ import annotations

import select
import signal
import sys
import threading

from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.group.join import join_group, unregister_at_exit
from pyspark_rocketmq.offsets.open import MemoryOffsetStore
from pyspark_rocketmq.options.read import ReadOptions


def main(name_servers: str, topic: str, group: str, *how: str) -> None:
    store = MemoryOffsetStore(group, clock=SystemClock())
    options = ReadOptions.parse(
        {"nameServers": name_servers, "topic": topic, "consumerGroup": group, "offsetStore": store.spec}
    )
    if "handler" in how:
        signal.signal(signal.SIGTERM, lambda *_: _say("told"))
    member = join_group(options, "leaving", store, SystemClock())
    unregister_at_exit(member)
    member.start()
    if not member.await_settled(60.0):
        raise AssertionError("The member got no queues within a minute.")
    guard = member._guard if "locked" in how else threading.Lock()
    with guard:
        _say("settled")
        # Python would not see a signal that comes right before a read that blocks.
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            pass


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
