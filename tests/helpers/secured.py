"""A cluster, simulated or real, that serves only signed requests through TLS: one broker,
one user with few rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from broker_sim.cluster import SimCluster
from broker_sim.connection import ServerTls, TlsMode
from broker_sim.security import Action, Policy, User
from pyspark_rocketmq.client.broker import BrokerClient
from pyspark_rocketmq.client.nameserver import NameServerClient
from pyspark_rocketmq.client.pool import ConnectionSettings
from pyspark_rocketmq.clock import Deadline, SystemClock
from pyspark_rocketmq.errors import TopicNotFound
from pyspark_rocketmq.wire.command import RemotingCommand
from tests.helpers.certificates import KEY_PASSWORD, Authority, Certificate
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.real_broker.harness import RealCluster
from tests.real_broker.security import ADMIN, ADMIN_SECRET, Security, Tls

USER, SECRET = "order-etl-71c4", "secret-key-8a5e0b"
TOPIC, GROUP = "orders", "billing"
RETRYING_GROUP = "shipping"
"""Whose lag may be looked at, too."""
STORING_GROUP = "storing"
"""Whose tables are on an object store."""
_RIGHTS = {
    f"Topic:{TOPIC}": ("Pub", "Sub", "Get"),
    f"Group:{GROUP}": ("Sub",),
    f"Group:{RETRYING_GROUP}": ("Sub", "Get"),
    f"Group:{STORING_GROUP}": ("Sub",),
    "Group:pyspark-rocketmq-source": ("Sub",),
}
_AUTH_CREATE_USER, _AUTH_CREATE_ACL = 3001, 3006


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredCluster:
    """A running cluster with topic ``TOPIC`` of four queues, on which ``USER`` may publish and subscribe."""

    name_servers: str
    address: str
    """Address of its broker, ``broker-a``."""
    authority: Authority
    client: Certificate
    """Its key is encrypted with ``KEY_PASSWORD``."""
    kind: str
    """``sim`` or ``real``."""

    @property
    def settings(self) -> ConnectionSettings:
        """How ``USER`` connects."""
        return ConnectionSettings(
            connect_timeout_s=PATIENCE_S,
            access_key=USER,
            secret_key=SECRET,
            use_tls=True,
            tls_ca_file=str(self.authority.own.certificate),
            tls_cert_file=str(self.client.certificate),
            tls_key_file=str(self.client.key),
            tls_key_password=KEY_PASSWORD,
        )

    @property
    def options(self) -> dict[str, str]:
        """The same as options of the source."""
        return {
            "nameServers": self.name_servers,
            "topic": TOPIC,
            "accessKey": USER,
            "secretKey": SECRET,
            "useTls": "true",
            "tlsCaFile": str(self.authority.own.certificate),
            "tlsCertFile": str(self.client.certificate),
            "tlsKeyFile": str(self.client.key),
            "tlsKeyPassword": KEY_PASSWORD,
        }


@contextmanager
def secured_sim(folder: Path) -> Iterator[SecuredCluster]:
    """Yield the simulator."""
    authority = Authority(folder)
    server = authority.issue("server")
    user = User(access_key=USER, secret_key=SECRET, policies=tuple(_policies()))
    tls = ServerTls(
        mode=TlsMode.ENFORCING,
        certificate_file=str(server.certificate),
        key_file=str(server.key),
        trust_file=str(authority.own.certificate),
    )
    with SimCluster(users=[user], tls=tls) as cluster:
        cluster.create_topic(TOPIC, queues=4)
        yield SecuredCluster(
            name_servers=cluster.name_servers,
            address=cluster.broker_addresses["broker-a"],
            authority=authority,
            client=authority.issue("client", password=KEY_PASSWORD),
            kind="sim",
        )


@contextmanager
def secured_real(folder: Path) -> Iterator[SecuredCluster]:
    """Yield the real RocketMQ; it starts in about five seconds."""
    authority = Authority(folder)
    tls = Tls(
        server=authority.issue("server"),
        client=authority.issue("harness"),
        authority=authority.own.certificate,
    )
    with RealCluster(1, Security(tls=tls)) as cluster:
        secured = SecuredCluster(
            name_servers=cluster.name_servers,
            address=cluster.broker_addresses["broker-a"],
            authority=authority,
            client=authority.issue("client", password=KEY_PASSWORD),
            kind="real",
        )
        _set_up(secured)
        yield secured


def _policies() -> Iterator[Policy]:
    for resource, actions in _RIGHTS.items():
        yield Policy(resource, frozenset(map(Action, actions)))


def _set_up(secured: SecuredCluster) -> None:
    clock = SystemClock()
    settings = replace(secured.settings, access_key=ADMIN, secret_key=ADMIN_SECRET)
    with settings.open_pool(clock) as pool:
        deadline = Deadline.after(clock, PATIENCE_S)
        BrokerClient(pool, clock, PATIENCE_S).create_topic(secured.address, TOPIC, 4)
        user = {"username": USER, "password": SECRET, "userType": "Normal"}
        entries = [
            {"resource": resource, "actions": actions, "decision": "Allow"}
            for resource, actions in _RIGHTS.items()
        ]
        acl = {"subject": f"User:{USER}", "policies": [{"policyType": "Custom", "entries": entries}]}
        channel = pool.get(secured.address, deadline)
        for code, fields, body in (
            (_AUTH_CREATE_USER, {"username": USER}, user),
            (_AUTH_CREATE_ACL, {"subject": f"User:{USER}"}, acl),
        ):
            request = RemotingCommand(code=code, ext_fields=fields, body=json.dumps(body).encode())
            answer = channel.request(request, deadline)
            assert answer.code == 0, answer
        names = NameServerClient((secured.name_servers,), pool, clock, PATIENCE_S, route_max_age_s=0)
        wait_until(lambda: _is_routed(names, deadline), reason=f"The route of topic {TOPIC}")


def _is_routed(names: NameServerClient, deadline: Deadline) -> bool:
    try:
        return bool(names.route(TOPIC, deadline).queues)
    except TopicNotFound:
        return False
