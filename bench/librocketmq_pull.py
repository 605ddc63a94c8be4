"""Pull a topic's backlog with the PyPI package ``rocketmq`` and print how long that took;
run by its own Python.

Arguments: nameServers topic group. Reads every body, as a user would:
it is copied out of the C library only then.
"""

from __future__ import annotations

import json
import os
import sys
import time

from rocketmq.client import PullConsumer


def main() -> None:
    name_servers, topic, group = sys.argv[1:]
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(name_servers)
    consumer.start()
    messages = size = 0
    started_s = time.perf_counter()
    for message in consumer.pull(topic, max_num=32):
        size += len(message.body)
        messages += 1
    seconds = time.perf_counter() - started_s
    print(json.dumps({"messages": messages, "bytes": size, "seconds": seconds}), flush=True)
    # Without the library's own shutdown, which joins its threads for seconds.
    os._exit(0)


if __name__ == "__main__":
    main()
