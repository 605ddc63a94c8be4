"""A real replica (a broker in the role SLAVE, id 1) beside a running master."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.real_broker import broker_conf, plain_remoting
from tests.real_broker.artifacts import compile_java, fetch_jars
from tests.real_broker.homes import new_home
from tests.real_broker.java_process import java_command, java_environment
from tests.real_broker.ports import free_ports
from tests.real_broker.server import Server, started

REPLICA_ID = 1
_HEAP = ("-Xms384m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m")
_GET_ALL_TOPIC_CONFIG, _UPDATE_BROKER_CONFIG, _UPDATE_NAMESRV_CONFIG = 21, 25, 318
_VIP, _LISTEN, _HA = -2, 0, 1
_AS_REPLICA = {"brokerId=0": f"brokerId={REPLICA_ID}", "brokerRole=ASYNC_MASTER": "brokerRole=SLAVE"}
# Every message counts as one that is no longer in memory, which is when a replica is suggested.
_READ_FROM = "slaveReadEnable=true\naccessMessageInMemoryMaxRatio={ratio}\n"
ACTING = "enableSlaveActingMaster=true\nskipPreOnline=true\n"
"""Settings of a replica that acts for its master while that is away."""


@contextmanager
def replica(
    name_servers: str,
    broker_name: str,
    master_address: str,
    is_up: Callable[[str], bool],
    *,
    more: str = "",
) -> Iterator[Server]:
    """The replica of ``broker_name``, once ``is_up`` of its address holds. It may be killed inside.

    It knows the master's topics from the start; by itself it would ask for them after a minute
    (``BrokerController.initializeBrokerScheduledTasks``). ``more`` are lines of its configuration.
    """
    home = new_home("rocketmq-replica-")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        topics = home / "store" / "config" / "topics.json"
        topics.parent.mkdir(parents=True)
        topics.write_bytes(plain_remoting.call(master_address, _GET_ALL_TOPIC_CONFIG).body)
        make = partial(_replica, name_servers, broker_name, home, more)
        yield started(make, lambda server: is_up(server.address), stack)


def _replica(name_servers: str, broker_name: str, home: Path, more: str) -> Server:
    lib = fetch_jars()
    port = free_ports(_VIP, _LISTEN, _HA)
    text = broker_conf.render(
        name=broker_name, port=port, ha_port=port + _HA, name_servers=name_servers, home=home
    )
    for of_master, of_replica in _AS_REPLICA.items():
        text = text.replace(of_master, of_replica)
    conf = home / "broker.conf"
    conf.write_text(text + _READ_FROM.format(ratio=0) + more, encoding="utf-8")
    return Server(
        name=f"replica of {broker_name}",
        address=f"127.0.0.1:{port}",
        command=java_command(home, "org.apache.rocketmq.broker.BrokerStartup", ["-c", str(conf)], heap=_HEAP),
        environment=java_environment([lib / "*", compile_java(lib)]),
        log_file=home / "broker.log",
    )


@contextmanager
def suggesting_replicas(master_address: str) -> Iterator[None]:
    """Make a running master send whoever pulls to its replica."""
    _configure(master_address, _READ_FROM.format(ratio=0))
    try:
        yield
    finally:
        _configure(master_address, "slaveReadEnable=false\naccessMessageInMemoryMaxRatio=40\n")


@contextmanager
def acting_masters(name_servers: str, master_address: str) -> Iterator[None]:
    """Make name server and a running master list a replica as master while the master is away."""
    _configure(name_servers, "supportActingMaster=true\n", _UPDATE_NAMESRV_CONFIG)
    try:
        # Writing its permission, even unchanged, registers it with the other settings.
        _configure(master_address, f"{ACTING}brokerPermission=6\n")
        yield
    finally:
        _configure(master_address, "enableSlaveActingMaster=false\nskipPreOnline=false\nbrokerPermission=6\n")
        _configure(name_servers, "supportActingMaster=false\n", _UPDATE_NAMESRV_CONFIG)


def _configure(address: str, properties: str, request: int = _UPDATE_BROKER_CONFIG) -> None:
    answer = plain_remoting.call(address, request, body=properties.encode())
    if answer.code != 0:
        raise AssertionError(f"{address} refused {properties!r}: {answer.code} {answer.remark}")
