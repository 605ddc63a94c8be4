"""``pyspark-rocketmq simulator``, ``python -m broker_sim``: a cluster until SIGTERM or SIGINT.

The first line of standard output is JSON: {"nameServers": "127.0.0.1:P", "brokers": {"broker-a": …}}, and
with replicas {…, "replicas": {"broker-a": {"1": …}}}. With ``--control``, lines of standard input are
commands (:mod:`broker_sim.control`), answered on standard output. The end of standard input has no effect.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from broker_sim.cluster import AsyncCluster
from broker_sim.connection import ServerTls, TlsMode
from broker_sim.control import ControlLine
from broker_sim.security import User
from broker_sim.settings import BrokerSettings

_PARENT_CHECK_S = 0.2
_WHOEVER = -1


def main(arguments: Sequence[str] | None = None, program: str = "python -m broker_sim") -> int:
    """Parse ``arguments`` and run a cluster until a signal ends it; return the exit code.

    ``program`` is the program's name in the help.
    """
    parser = _parser(program)
    options = parser.parse_args(arguments)
    parent = os.getppid() if options.exit_with_parent == _WHOEVER else options.exit_with_parent
    try:
        cluster = AsyncCluster(
            brokers=options.brokers,
            replicas=options.replicas,
            settings=BrokerSettings(
                default_queues=options.queues,
                retention_bytes=options.retention_bytes,
                slave_read_enable=options.slave_reads,
                enable_property_filter=options.property_filter,
            ),
            users=[] if options.users is None else _super_users(options.users),
            tls=ServerTls(
                mode=TlsMode(options.tls_mode),
                certificate_file=options.tls_certificate,
                key_file=options.tls_key,
                trust_file=options.tls_trust,
            ),
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))
    asyncio.run(_serve(cluster, options.port, parent, has_control=options.control))
    return 0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description="A simulated RocketMQ cluster on 127.0.0.1.")
    add = parser.add_argument
    add("--port", type=int, default=0, help="name server port; 0 takes a free one")
    add("--brokers", type=int, default=1, help="number of brokers: broker-a, broker-b, …")
    add("--replicas", type=int, default=0, help="machines that follow each broker")
    add("--slave-reads", action="store_true", help="let replicas answer pulls")
    add("--property-filter", action="store_true", help="take SQL92 subscriptions (enablePropertyFilter)")
    add("--queues", type=int, default=8, help="queues per broker of topics made on first send")
    add("--retention-bytes", type=int, help="commit log bytes kept per broker")
    add(
        "--users",
        type=Path,
        metavar="FILE",
        help="serve only requests signed by a user of this file, who may do everything; a line of "
        "ACCESS:SECRET for each",
    )
    add("--tls-mode", choices=[each.value for each in TlsMode], default=TlsMode.PERMISSIVE.value)
    add(
        "--tls-certificate",
        metavar="FILE",
        help="PEM chain of the servers; without it nobody connects by TLS",
    )
    add("--tls-key", metavar="FILE", help="PEM of its key")
    add("--tls-trust", metavar="FILE", help="PEM of who signs client certificates, which become required")
    add("--control", action="store_true", help="take commands from standard input")
    add(
        "--exit-with-parent",
        nargs="?",
        type=int,
        const=_WHOEVER,
        metavar="PID",
        help="end when the process that started this one ends; give the PID of that process, in case it ends "
        "before this one can look for it",
    )
    return parser


def _super_users(file: Path) -> list[User]:
    users = [_super_user(line.strip(), file) for line in file.read_text().splitlines() if line.strip()]
    if not users:
        raise ValueError(f"There is no user in {file}; it has a line of ACCESS:SECRET for each.")
    return users


def _super_user(text: str, file: Path) -> User:
    access_key, separator, secret_key = text.partition(":")
    if not access_key or not separator or not secret_key:
        raise ValueError(f"A line of {file} is not ACCESS:SECRET.")
    return User(access_key=access_key, secret_key=secret_key, is_super=True)


async def _serve(cluster: AsyncCluster, port: int, parent: int | None, *, has_control: bool) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await cluster.start(port)
    _tell(json.dumps(_addresses(cluster)))
    async with AsyncExitStack() as tasks:
        if parent is not None:
            tasks.callback(asyncio.create_task(_watch_parent(parent, stopping)).cancel)
        if has_control:
            tasks.callback(asyncio.create_task(_take_commands(ControlLine(cluster))).cancel)
        await stopping.wait()
    await cluster.stop()


def _addresses(cluster: AsyncCluster) -> dict[str, object]:
    addresses: dict[str, object] = {
        "nameServers": str(cluster.name_server_host),
        "brokers": {name: str(broker.state.host) for name, broker in cluster.brokers.items()},
    }
    replicas = {
        name: {str(broker_id): str(host) for broker_id, host in cluster.machines(name).replicas.items()}
        for name in cluster.brokers
    }
    if any(replicas.values()):
        addresses["replicas"] = replicas
    return addresses


async def _take_commands(control: ControlLine) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            _tell(await control.obey(line))
    finally:
        transport.close()


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _watch_parent(parent: int, stopping: asyncio.Event) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing announces the parent's end
        await asyncio.sleep(_PARENT_CHECK_S)
    stopping.set()


if __name__ == "__main__":
    sys.exit(main())
