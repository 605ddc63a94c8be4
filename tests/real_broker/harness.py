"""A real RocketMQ cluster of one name server and one or two brokers on this machine.

    python -m tests.real_broker.harness fetch             # jars into .cache/, as `make test` does
    python -m tests.real_broker.harness run --brokers 1   # prints one line of JSON and stays until SIGTERM

All files of a cluster are in one temporary directory that goes away with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from pyspark_rocketmq.client.transport import Closing
from tests.real_broker import broker_conf, plain_remoting
from tests.real_broker.artifacts import (
    OTHER_VERSIONS,
    compile_java,
    fetch_jars,
    fetch_proxy_jars,
    fetch_server_jars,
    fetch_spark_jars,
)
from tests.real_broker.errors import HarnessError
from tests.real_broker.homes import new_home
from tests.real_broker.java_process import configure_old_logs, java_command, java_environment
from tests.real_broker.ports import free_ports
from tests.real_broker.security import Security
from tests.real_broker.server import PortTaken, Server, await_condition

_BIND_ATTEMPTS = 3
_PROGRAM_TIMEOUT_S = 180.0
_UPDATE_BROKER_CONFIG = 25
_GET_BROKER_CLUSTER_INFO = 106

_NAME_SERVER_HEAP = ("-Xms64m", "-Xmx128m", "-XX:MaxDirectMemorySize=64m")
_BROKER_HEAP = ("-Xms384m", "-Xmx512m", "-XX:MaxDirectMemorySize=256m")
_PROGRAM_HEAP = ("-Xmx256m",)

_NAME_SERVER_MAIN = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER_MAIN = "org.apache.rocketmq.broker.BrokerStartup"
_ADMIN_MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"

# A broker also opens its VIP port, always two below the listening one, and the replication port.
_VIP, _LISTEN, _HA = -2, 0, 1


class RealCluster(Closing):
    """One name server and ``brokers`` masters named ``broker-a``, ``broker-b`` …

    Use it as a context manager. Topics and groups are created automatically, as by default in RocketMQ. With
    ``security`` brokers serve only users they know; name servers serve all, with and without TLS. With
    ``forgetful_s`` brokers forget locks and members after that many seconds instead of 60 and 120. The servers
    are of the ``version`` of the suites unless another one is given.

    Raises:
        HarnessError: If Java, Maven or room on the disk is missing, or a server did not come up within three
            minutes.
    """

    def __init__(
        self,
        brokers: int = 1,
        security: Security | None = None,
        *,
        forgetful_s: float | None = None,
        version: str | None = None,
    ) -> None:
        lib = fetch_jars()
        self._environment = java_environment([lib / "*", compile_java(lib)])
        self._of_servers = self._environment
        if version is not None:
            self._of_servers = java_environment([fetch_server_jars(version) / "*"])
        self._security = security
        self._forgetful_ms = None if forgetful_s is None else int(forgetful_s * 1000)
        self._broker_names = [f"broker-{letter}" for letter in "abcdefgh"[:brokers]]
        self._directory = new_home("rocketmq-")
        self._name_server: Server | None = None
        self._brokers: dict[str, Server] = {}

    def __enter__(self) -> Self:
        try:
            self._start_name_server()
            # All at once, then wait for each: the start of a JVM is the long part.
            for name in self._broker_names:
                self._launch_broker(name)
            for name in self._broker_names:
                self._retry_while_ports_are_taken(
                    partial(self._await_broker, name), again=partial(self._launch_broker, name)
                )
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill every process, whose state nobody needs any more, and remove all files."""
        for server in [*self._brokers.values(), self._name_server]:
            if server is not None:
                server.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def name_servers(self) -> str:
        """``host:port`` of the name server, as option ``nameServers`` takes it."""
        if self._name_server is None:
            raise HarnessError("The cluster is not running: enter its context first.")
        return self._name_server.address

    @property
    def broker_addresses(self) -> dict[str, str]:
        """Broker name to ``host:port``, stopped brokers included."""
        return {name: broker.address for name, broker in self._brokers.items()}

    def pid_of(self, name: str) -> int:
        """The process of a broker that runs.

        Raises:
            HarnessError: If it is stopped.
        """
        process = self._brokers[name].process
        if process is None:
            raise HarnessError(f"{name} is stopped and has no process.")
        return process.pid

    def store_of(self, name: str) -> Path:
        """The folder of a broker's messages and configuration, for whoever changes it while it is stopped."""
        return self._directory / name / "store"

    def stop_broker(self, name: str) -> None:
        """End a broker as a crash would; returns when its route is gone.

        Its messages stay; offsets committed during the last five seconds may be lost and
        locks are. An orderly shutdown of RocketMQ takes eleven seconds, most of them
        asleep, and would teach a client nothing more.
        """
        self._brokers[name].kill()
        await_condition(lambda: self._is_registered(name) is False, f"{name} was not forgotten")

    def start_broker(self, name: str) -> None:
        """Start a stopped broker at its old address; returns when the name server lists it."""
        self._brokers[name].start()
        self._await_broker(name)

    def restart_name_server(self) -> None:
        """Kill the name server and start it again at its address; it knows no broker until one registers,
        within 30 s.
        """
        if self._name_server is None:
            raise HarnessError("The cluster is not running: enter its context first.")
        self._name_server.kill()
        self._name_server.start()
        self._await_name_server()

    def register_brokers(self) -> None:
        """Have the brokers that run register now; returns when the name server lists them."""
        for name, server in self._brokers.items():
            if server.process is not None:
                self._await_broker(name)

    def mqadmin(self, *arguments: str) -> str:
        """Output of RocketMQ's admin tool, which gets the name server; takes about 1.5 s.

        Raises:
            HarnessError: If the tool ended with a code other than 0.
        """
        return self.java(_ADMIN_MAIN, *arguments, "-n", self.name_servers)

    def java(self, main_class: str, *arguments: object) -> str:
        """Standard output of a Java program: one of ``java/`` or any class of the jars.

        Raises:
            HarnessError: If it ended with a code other than 0.
        """
        texts = [str(argument) for argument in arguments]
        done = subprocess.run(
            java_command(self._directory, main_class, texts, heap=_PROGRAM_HEAP),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self._environment,
            # Some commands of mqadmin leave files where they run.
            cwd=self._directory,
            timeout=_PROGRAM_TIMEOUT_S,
            check=False,
        )
        output, complaint = done.stdout.decode(), done.stderr.decode()
        if done.returncode != 0:
            raise HarnessError(f"{main_class} {texts} failed:\n{output[-2000:]}{complaint[-2000:]}")
        return output

    def _start_name_server(self) -> None:
        self._launch_name_server()
        self._retry_while_ports_are_taken(self._await_name_server, again=self._launch_name_server)

    def _launch_name_server(self) -> None:
        port = free_ports(_LISTEN)
        conf = self._directory / "namesrv.conf"
        conf.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n", encoding="ascii")
        self._name_server = self._server(
            "namesrv",
            port,
            _NAME_SERVER_MAIN,
            conf,
            _NAME_SERVER_HEAP,
            options=self._tls_options(self._security.name_server_mode if self._security else ""),
        )
        self._name_server.start()

    def _launch_broker(self, name: str) -> None:
        port = free_ports(_VIP, _LISTEN, _HA)
        home = self._directory / name
        conf = self._directory / f"{name}.conf"
        text = broker_conf.render(
            name=name, port=port, ha_port=port + _HA, name_servers=self.name_servers, home=home
        )
        if self._security is not None:
            text += self._security.broker_conf
        if self._forgetful_ms is not None:
            text += f"channelExpiredTimeout={self._forgetful_ms}\n"
        conf.write_text(text, encoding="utf-8")
        options = [*self._tls_options("enforcing"), *self._lock_options()]
        self._brokers[name] = self._server(name, port, _BROKER_MAIN, conf, _BROKER_HEAP, options=options)
        self._brokers[name].start()

    def _await_name_server(self) -> None:
        if self._name_server is not None:
            self._name_server.await_start(self._is_answering)

    def _await_broker(self, name: str) -> None:
        def is_registered_or_told_to_be() -> bool:
            return self._is_registered(name) or self._ask_to_register(self._brokers[name].address)

        self._brokers[name].await_start(is_registered_or_told_to_be)

    def _ask_to_register(self, broker_address: str) -> bool:
        """Make a broker that is up register at once; always False.

        A broker that starts before it has found the name server tries again only ten seconds later.
        Writing its permission, even unchanged, registers it (``AdminBrokerProcessor.updateBrokerConfig``).
        """
        with contextlib.suppress(OSError):
            tls = self._security.tls.client_context() if self._security is not None else None
            plain_remoting.call(broker_address, _UPDATE_BROKER_CONFIG, body=b"brokerPermission=6", tls=tls)
        return False

    def _tls_options(self, mode: str) -> Sequence[str]:
        return [] if self._security is None else self._security.tls.properties(mode)

    def _lock_options(self) -> Sequence[str]:
        """Source: ``RebalanceLockManager.REBALANCE_LOCK_MAX_LIVE_TIME``."""
        if self._forgetful_ms is None:
            return []
        return [f"-Drocketmq.broker.rebalance.lockMaxLiveTime={self._forgetful_ms}"]

    def _server(
        self,
        name: str,
        port: int,
        main_class: str,
        conf: Path,
        heap: Sequence[str],
        *,
        options: Sequence[str],
    ) -> Server:
        home = self._directory / name
        home.mkdir(exist_ok=True)
        configure_old_logs(home)
        return Server(
            name=name,
            address=f"127.0.0.1:{port}",
            command=java_command(home, main_class, ["-c", str(conf)], heap=heap, options=options),
            environment=self._of_servers,
            log_file=self._directory / f"{name}.log",
        )

    def _retry_while_ports_are_taken(self, attempt: Callable[[], None], again: Callable[[], None]) -> None:
        for _ in range(_BIND_ATTEMPTS):
            try:
                attempt()
            except PortTaken:
                again()
            else:
                return
        raise HarnessError(f"No free ports were found in {_BIND_ATTEMPTS} attempts to start a server.")

    def _is_answering(self) -> bool:
        with contextlib.suppress(OSError):
            self._cluster_info()
            return True
        return False

    def _is_registered(self, broker_name: str) -> bool | None:
        """Whether the broker's address is listed, since a replica has the same name; None if the name server
        gives no answer, as while it restarts.
        """
        with contextlib.suppress(OSError):
            return f'"{self._brokers[broker_name].address}"' in self._cluster_info()
        return None

    def _cluster_info(self) -> str:
        """The name server's list of brokers, as text: its JSON has bare integers for keys."""
        return plain_remoting.call(self.name_servers, _GET_BROKER_CLUSTER_INFO).body.decode()


def _run_until_stopped(brokers: int) -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with RealCluster(brokers) as cluster:
        addresses = {"nameServers": cluster.name_servers, "brokers": cluster.broker_addresses}
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        stop.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.real_broker.harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="download the jars and compile the Java programs")
    fetch.add_argument("--all", action="store_true", help="the proxy and other versions of servers, too")
    run = commands.add_parser("run", help="run a cluster until SIGTERM or SIGINT")
    run.add_argument("--brokers", type=int, default=1, choices=range(1, 9), metavar="N")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "fetch":
            compile_java(fetch_jars())
            fetch_spark_jars()
            if chosen.all:
                fetch_proxy_jars()
                for version in OTHER_VERSIONS:
                    fetch_server_jars(version)
        else:
            _run_until_stopped(chosen.brokers)
    except HarnessError as exc:
        sys.exit(f"error: {exc}")


if __name__ == "__main__":
    main()
