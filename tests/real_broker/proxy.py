"""A real RocketMQ proxy in front of a running cluster; clients use its address as that of a name server."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.real_broker.artifacts import fetch_proxy_jars
from tests.real_broker.errors import HarnessError
from tests.real_broker.homes import new_home
from tests.real_broker.java_process import java_command, java_environment
from tests.real_broker.ports import free_ports
from tests.real_broker.server import PortTaken, Server

_BIND_ATTEMPTS = 3
_HEAP = ("-Xms128m", "-Xmx256m", "-XX:MaxDirectMemorySize=128m")
_REMOTING, _GRPC = 0, 1


@contextmanager
def proxy(name_servers: str) -> Iterator[str]:
    """Run a proxy in cluster mode; the value is its address for remoting clients."""
    home = new_home("rocketmq-proxy-")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        for _ in range(_BIND_ATTEMPTS):
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
            server = Server(
                name="proxy",
                address=f"127.0.0.1:{port}",
                command=java_command(
                    home, "org.apache.rocketmq.proxy.ProxyStartup", ["-pc", str(conf)], heap=_HEAP
                ),
                environment=java_environment([fetch_proxy_jars() / "*"]) | {"RMQ_PROXY_HOME": str(home)},
                log_file=home / "proxy.log",
            )
            stack.callback(server.kill)
            server.start()
            with suppress(PortTaken):
                server.await_start(lambda port=port: _listens(port))  # type: ignore[misc]
                break
        else:
            raise HarnessError(f"No free ports were found in {_BIND_ATTEMPTS} attempts to start a proxy.")
        yield server.address


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
