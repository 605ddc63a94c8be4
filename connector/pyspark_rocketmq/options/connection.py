"""Options of reading and writing that identify the cluster and configure access to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options.declare import OptionSet, everywhere_option
from pyspark_rocketmq.options.parsers import (
    address_list,
    address_map,
    boolean,
    instance_namespace,
    int_between,
    namespace_name,
    secret_value,
    text_value,
)

PLAIN_SOURCE_GROUP: Final = "pyspark-rocketmq-source"
"""Group that brokers see if a query has none, since a pull must name one."""
_NEEDS: Final = {
    "accessKey": "secretKey",
    "secretKey": "accessKey",
    "securityToken": "accessKey",
    "tlsCaFile": "useTls=true",
    "tlsCertFile": "useTls=true",
    "tlsKeyFile": "tlsCertFile",
    "tlsKeyPassword": "tlsCertFile",
}
"""For each option, the other option that it needs to have an effect."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConnectionOptions(OptionSet):
    """Base of the options of reading and of writing."""

    name_servers: tuple[str, ...] = everywhere_option("nameServers", address_list).doc(
        "Addresses of the RocketMQ name servers, such as `10.0.0.5:9876;10.0.0.6:9876`. `http://` may come "
        "before each, as clouds' consoles show it; it is ignored."
    )
    namespace: str | None = everywhere_option("namespace", namespace_name, None).doc(
        "RocketMQ namespace of topics and groups: with namespace `shop`, brokers call topic `orders` "
        "`shop%orders`. Everywhere else, in the column `topic` too, names are written without it. If a host "
        "in `nameServers` begins with `MQ_INST_…`, that instance's namespace is the default."
    )
    namespace_v2: str | None = everywhere_option("namespaceV2", namespace_name, None).doc(
        "Id of a cloud's instance, which every request names in its header (fields `ns` and `nsd`), as with "
        "Java's `setNamespaceV2`. Serverless instances of Aliyun need it. Names of topics and groups do not "
        "change. Not together with `namespace`."
    )
    broker_addresses: tuple[tuple[str, str], ...] = everywhere_option("brokerAddresses", address_map, ()).doc(
        "For brokers that announce an address (`brokerIP1`) which cannot be reached from here: the address "
        'to connect to instead, as JSON: `{"10.0.0.5:10911": "1.2.3.4:10911"}`.'
    )
    access_key: str | None = everywhere_option("accessKey", secret_value, None, secret=True).doc(
        "RocketMQ user (access key) for clusters with access control; needs `secretKey`. To read, the user "
        "needs `Sub` and `Get` on the topic and `Sub` on the consumer group; without `consumerGroup` this is "
        f"the group `{PLAIN_SOURCE_GROUP}`. To write, the user needs `Pub` on the topic."
    )
    secret_key: str | None = everywhere_option("secretKey", secret_value, None, secret=True).doc(
        "The user's secret, with which every request is signed. It is never sent or shown."
    )
    security_token: str | None = everywhere_option("securityToken", secret_value, None, secret=True).doc(
        "Token of temporary credentials, sent with every request; needs `accessKey`."
    )
    use_tls: bool = everywhere_option("useTls", boolean, False).doc(
        "Encrypt every connection, to name servers too. RocketMQ's ports are the same with and without TLS."
    )
    tls_ca_file: str | None = everywhere_option(
        "tlsCaFile", text_value, None, default_text="the system's authorities"
    ).doc(
        "PEM file of the authorities whose certificates are trusted. Like the other TLS files it is read "
        "on the driver and on every executor: it must be at the same path on all of them."
    )
    tls_cert_file: str | None = everywhere_option("tlsCertFile", text_value, None).doc(
        "PEM file of this client's certificate chain, for servers that require one "
        "(`tls.server.need.client.auth`)."
    )
    tls_key_file: str | None = everywhere_option(
        "tlsKeyFile", text_value, None, default_text="`tlsCertFile`"
    ).doc("PEM file of the certificate's private key.")
    tls_key_password: str | None = everywhere_option("tlsKeyPassword", secret_value, None, secret=True).doc(
        "Password of an encrypted private key."
    )
    tls_verify_certificate: bool = everywhere_option("tlsVerifyCertificate", boolean, True).doc(
        "Refuse servers whose certificate no trusted authority has signed. `false` is for tests with brokers "
        "that have no certificate and make one at every start."
    )
    tls_verify_hostname: bool = everywhere_option("tlsVerifyHostname", boolean, True).doc(
        "Refuse certificates that were made for another host. A broker's certificate must name the address "
        "under which name servers list the broker (`brokerIP1`, mostly an IP address)."
    )
    request_timeout_ms: int = everywhere_option(
        "requestTimeoutMs", int_between(1, 600_000), 5_000, unit="ms"
    ).doc("How long one request to a name server or broker may take.")
    retry_timeout_ms: int = everywhere_option(
        "retryTimeoutMs", int_between(0, 86_400_000), 120_000, unit="ms"
    ).doc(
        "How long a task tries a broker that cannot be reached or is busy, before the task fails. A query "
        "that has worked before also waits this long at its start for servers that are down."
    )

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``{"namespace": …}`` if the host name of a name server contains a namespace; else ``{}``."""
        return implied_namespace(values)

    def connection_problems(self) -> list[str]:
        """Return a sentence for each connection option that lacks another option, or excludes another."""
        return connection_problems(self)

    def name_problems(self, names: Iterable[tuple[str, str, int]]) -> list[str]:
        """Return a problem for each of ``names`` that is too long together with the namespace.

        Each item has an option's key, the name that it gives, and the maximum number of characters. Without a
        namespace there is no problem.
        """
        if self.namespace is None:
            return []
        return [
            f"option '{key}' is longer than {limit} characters together with its namespace "
            f"'{self.namespace}%'"
            for key, name, limit in names
            if len(self.namespace) + 1 + len(name) > limit
        ]


def connection_problems(options: OptionSet) -> list[str]:
    """Return a sentence for each connection option that lacks another option, or excludes another."""
    given = options.given()
    problems = [
        f"option '{key}' needs '{other}'"
        for key, other in _NEEDS.items()
        if key in given and other.partition("=")[0] not in given
    ]
    if {"tlsCaFile", "tlsVerifyCertificate"} <= given.keys():
        problems.append("option 'tlsCaFile' is of no use with 'tlsVerifyCertificate=false'; leave one out")
    return problems + options.said_twice("namespace", "namespaceV2")


def implied_namespace(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"namespace": …}`` if a host in ``name_servers`` names one; ``{}`` if none does.

    If a namespace is given (v1 or v2), return ``{}``.
    """
    if values.get("namespace") is not None or values.get("namespace_v2") is not None:
        return {}
    found = instance_namespace(values.get("name_servers") or ())
    return {} if found is None else {"namespace": found}


def parsed_addresses(name_servers: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of name servers in an argument: a sequence, or one text with all of them.

    Raises:
        OptionError: If one is not an address.
    """
    text = name_servers if isinstance(name_servers, str) else ";".join(name_servers)
    try:
        return address_list(text)
    except ValueError as problem:
        raise OptionError((f"name_servers='{text}' {problem}",), where="arguments") from None


def namespace_of(namespace: str, name_servers: Iterable[str], namespace_v2: str | None) -> str:
    """Return a producer's namespace: ``namespace``, else the one that a name server's host name contains.

    The result is empty if there is no namespace, or if ``namespace_v2`` is set.

    Raises:
        OptionError: If ``namespace`` and ``namespace_v2`` are both given.
    """
    if namespace and namespace_v2:
        problem = "namespace and namespace_v2 (of settings) exclude each other; give one"
        raise OptionError((problem,), where="arguments")
    return "" if namespace_v2 else namespace or instance_namespace(name_servers) or ""
