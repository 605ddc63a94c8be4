"""The machines of one broker name: its master and the replicas that can take the master's place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_sim.broker import Broker
from broker_sim.layout import Host
from broker_sim.nameserver import NameServer
from broker_sim.replicas import LogCopy, make_replica
from broker_sim.roles import Role
from broker_sim.server import Endpoint, EndpointServer
from broker_sim.settings import BrokerSettings
from pyspark_rocketmq.clock import Clock

MASTER_ID = 0

Serve = Callable[[Endpoint, Callable[[], None]], EndpointServer]
"""Makes the server of an endpoint; it calls the second argument after everything that may have stored messages."""


@dataclass(slots=True, kw_only=True)
class _Machine:
    broker: Broker
    server: EndpointServer
    role: Role | None = None
    """None for a broker that never has anything to do with slaves."""
    copy: LogCopy | None = None
    """None for the master."""
    is_running: bool = False


class BrokerMachines:
    """Starts, stops and promotes; everything a stopped machine stored is kept."""

    def __init__(
        self,
        name: str,
        *,
        replicas: int,
        clock: Clock,
        settings: BrokerSettings,
        name_server: NameServer,
        serve: Serve,
    ) -> None:
        self._name = name
        self._name_server = name_server
        master = Broker(name, clock, settings)
        self._machines = {MASTER_ID: self._machine(master, MASTER_ID, serve, has_role=replicas > 0)}
        for broker_id in range(1, replicas + 1):
            replica = make_replica(master, clock, settings)
            machine = self._machine(replica, broker_id, serve, has_role=True)
            machine.copy = LogCopy(master.state.store, replica.state.store)
            self._machines[broker_id] = machine

    @property
    def master(self) -> Broker:
        """The broker that takes messages, running or not."""
        return self._machines[MASTER_ID].broker

    def host(self, broker_id: int = MASTER_ID) -> Host:
        """Where a machine listens, or listened last."""
        return self._machine_of(broker_id).broker.state.host

    @property
    def replicas(self) -> dict[int, Host]:
        """Where each replica listens, or listened last, by broker id."""
        return {key: machine.broker.state.host for key, machine in self._machines.items() if key != MASTER_ID}

    async def start_all(self) -> None:
        """Start every machine."""
        for broker_id in self._machines:
            await self.start(broker_id)

    async def stop_all(self) -> None:
        """Stop every machine."""
        for broker_id in self._machines:
            await self.stop(broker_id)

    async def start(self, broker_id: int = MASTER_ID) -> None:
        """Listen, on the former port if there was one, and register at the name server."""
        machine = self._machine_of(broker_id)
        host = await machine.server.start(machine.broker.state.host.port)
        machine.broker.listening_at(host)
        machine.is_running = True
        self._name_server.register(self._name, host, machine.broker.state.topics, broker_id)

    async def stop(self, broker_id: int = MASTER_ID) -> None:
        """Leave the name server, close listener and connections, lose locks and memberships."""
        machine = self._machine_of(broker_id)
        self._name_server.unregister(self._name, broker_id)
        machine.is_running = False
        await machine.server.stop()
        machine.broker.restarted()

    async def promote(self, broker_id: int) -> None:
        """Make a replica the master with the messages it has; all other machines leave for good.

        Postponed messages go over to it even if it has not copied them yet.
        """
        promoted = self._machine_of(broker_id)
        if promoted.copy is None or promoted.role is None:
            raise ValueError(f"Machine {broker_id} of {self._name!r} is the master already.")
        former = self.master
        for other in [each for each in self._machines if each != broker_id]:
            await self.stop(other)
        self._name_server.unregister(self._name, broker_id)
        self._machines = {MASTER_ID: promoted}
        promoted.copy = None
        promoted.role.broker_id = MASTER_ID
        promoted.broker.state.delayed = former.state.delayed
        promoted.broker.state.timers = former.state.timers
        if promoted.is_running:
            state = promoted.broker.state
            self._name_server.register(self._name, state.host, state.topics)
        promoted.server.do_due()

    def set_lag(self, broker_id: int, messages: int) -> None:
        """Let a replica miss the newest ``messages`` from now on."""
        copy = self._machine_of(broker_id).copy
        if copy is None:
            raise ValueError(f"Machine {broker_id} of {self._name!r} is the master: it copies nobody.")
        copy.lag_messages = messages
        self.replicate()

    def replicate(self) -> None:
        """Bring replicas as far as they may be."""
        for machine in self._machines.values():
            if machine.copy is not None:
                machine.copy.catch_up()

    def refuse_connections(self) -> None:
        """Let nobody new connect to the master."""
        self._machines[MASTER_ID].server.refuse()

    def accept_connections(self) -> None:
        """End :meth:`refuse_connections`."""
        self._machines[MASTER_ID].server.listen()

    def look_at_clock(self) -> None:
        """Do what is due everywhere."""
        for machine in self._machines.values():
            machine.server.look_at_clock()

    def held_pulls(self) -> int:
        """Pulls that wait at all machines."""
        return sum(len(machine.broker.state.held_pulls) for machine in self._machines.values())

    def connections(self) -> int:
        """Connections the master serves."""
        return self._machines[MASTER_ID].server.connection_count

    def messages_were_put(self) -> None:
        """Messages were stored past the master's server: wake who waits for them."""
        self._machines[MASTER_ID].server.do_due()

    def _machine(self, broker: Broker, broker_id: int, serve: Serve, *, has_role: bool) -> _Machine:
        if not has_role and not broker.state.settings.slave_read_enable:
            return _Machine(broker=broker, server=serve(broker, self.replicate))
        role = Role(broker, broker_id, lambda: self._machines[MASTER_ID].is_running)
        return _Machine(broker=broker, server=serve(role, self.replicate), role=role)

    def _machine_of(self, broker_id: int) -> _Machine:
        try:
            return self._machines[broker_id]
        except KeyError:
            ids = ", ".join(map(str, self._machines))
            raise ValueError(
                f"{self._name!r} has no machine {broker_id}; its broker ids are {ids}."
            ) from None
