"""How to reach the cluster's servers: time-outs, credentials, TLS. What every process of a query shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_rocketmq.client.acl import AclSigner
from pyspark_rocketmq.client.dispatcher import RequestHandler
from pyspark_rocketmq.client.pool import ChannelPool, Connect
from pyspark_rocketmq.client.tls import TlsConnector
from pyspark_rocketmq.client.transport import TcpTransport
from pyspark_rocketmq.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Picklable, hashable, and silent about its secrets when printed."""

    connect_timeout_s: float = 3.0
    access_key: str | None = None
    """With ``secret_key``: requests are signed."""
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    use_tls: bool = False
    tls_ca_file: str | None = None
    """PEM file of the authorities to trust; None means the system's."""
    tls_cert_file: str | None = None
    """PEM file of this client's certificate chain, for servers that ask for one."""
    tls_key_file: str | None = None
    tls_key_password: str | None = field(default=None, repr=False)
    tls_verify: bool = True
    """False accepts any certificate, as the Java client does in its test mode (its default)."""

    def open_pool(self, clock: Clock, request_handler: RequestHandler | None = None) -> ChannelPool:
        """Make a pool of channels with these settings; nothing is connected yet.

        Raises:
            OptionError: If a certificate or key file cannot be used.
        """
        signer = None
        if self.access_key is not None and self.secret_key is not None:
            signer = AclSigner(self.access_key, self.secret_key, self.security_token).sign
        connect: Connect = TcpTransport.connect
        if self.use_tls:
            connect = TlsConnector(
                ca_file=self.tls_ca_file,
                cert_file=self.tls_cert_file,
                key_file=self.tls_key_file,
                key_password=self.tls_key_password,
                verify=self.tls_verify,
            ).connect
        return ChannelPool(clock, self.connect_timeout_s, request_handler, connect=connect, signer=signer)
