"""A real RocketMQ proxy in front of a running cluster; clients use its address as that of a name server."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.real_broker.artifacts import fetch_proxy_jars
from tests.real_broker.homes import new_home
from tests.real_broker.java_process import java_command, java_environment
from tests.real_broker.ports import free_ports
from tests.real_broker.server import Server, started

_HEAP = ("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=128m")
_REMOTING, _GRPC = 0, 1


@contextmanager
def proxy(name_servers: str) -> Iterator[str]:
    """Run a proxy in cluster mode; the value is its address for remoting clients."""
    home = new_home("rocketmq-proxy-")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        yield started(partial(_proxy, name_servers, home), _listens, stack).address


def _proxy(name_servers: str, home: Path) -> Server:
    port = free_ports(_REMOTING, _GRPC)
    conf = home / "proxy.json"
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": name_servers,
        "proxyMode": "CLUSTER",
        "remotingListenPort": port + _REMOTING,
        "grpcServerPort": port + _GRPC,
        "localServeAddr": "127.0.0.1",
        "remotingAccessAddr": "127.0.0.1",
    }
    conf.write_text(json.dumps(settings), encoding="ascii")
    return Server(
        name="proxy",
        address=f"127.0.0.1:{port}",
        command=java_command(home, "org.apache.rocketmq.proxy.ProxyStartup", ["-pc", str(conf)], heap=_HEAP),
        environment=java_environment([fetch_proxy_jars() / "*"]) | {"RMQ_PROXY_HOME": str(home)},
        log_file=home / "proxy.log",
    )


def _listens(server: Server) -> bool:
    host, _, port = server.address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False
