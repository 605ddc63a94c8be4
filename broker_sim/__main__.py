"""``python -m broker_sim``: a cluster until SIGTERM or SIGINT.

The first line of standard output is JSON: {"nameServers": "127.0.0.1:P", "brokers": {"broker-a": …}}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence

from broker_sim.async_cluster import AsyncCluster
from broker_sim.settings import BrokerSettings

_PARENT_CHECK_S = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse ``arguments``, run, return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m broker_sim", description="A simulated RocketMQ cluster on 127.0.0.1."
    )
    parser.add_argument("--port", type=int, default=0, help="name server port; 0 takes a free one")
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers: broker-a, broker-b, …")
    parser.add_argument(
        "--queues", type=int, default=8, help="queues per broker of topics made on first send"
    )
    parser.add_argument("--retention-bytes", type=int, default=None, help="commit log bytes kept per broker")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the starting process does")
    options = parser.parse_args(arguments)
    parent = os.getppid() if options.exit_with_parent else None
    settings = BrokerSettings(default_queues=options.queues, retention_bytes=options.retention_bytes)
    try:
        cluster = AsyncCluster(brokers=options.brokers, settings=settings)
    except ValueError as error:
        parser.error(str(error))
    asyncio.run(_serve(cluster, options.port, parent))
    return 0


async def _serve(cluster: AsyncCluster, port: int, parent: int | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await cluster.start(port)
    addresses = {
        "nameServers": str(cluster.name_server_host),
        "brokers": {name: str(broker.state.host) for name, broker in cluster.brokers.items()},
    }
    sys.stdout.write(json.dumps(addresses) + "\n")
    sys.stdout.flush()
    watcher = None if parent is None else asyncio.create_task(_watch_parent(parent, stopping))
    await stopping.wait()
    if watcher is not None:
        watcher.cancel()
    await cluster.stop()


async def _watch_parent(parent: int, stopping: asyncio.Event) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing announces the parent's end
        await asyncio.sleep(_PARENT_CHECK_S)
    stopping.set()


if __name__ == "__main__":
    sys.exit(main())
