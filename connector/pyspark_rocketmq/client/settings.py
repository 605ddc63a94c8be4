"""How to reach the cluster's servers: time-outs, credentials, TLS. What every process of a query shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from pyspark_rocketmq.client.acl import AclSigner
from pyspark_rocketmq.client.outgoing import Signer
from pyspark_rocketmq.client.pool import ChannelPool, HandlerFor
from pyspark_rocketmq.client.tls import TlsConnector
from pyspark_rocketmq.client.transport import Connect, TcpTransport
from pyspark_rocketmq.clock import Clock
from pyspark_rocketmq.connection_options import ConnectionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Picklable, hashable, and silent about its secrets when printed."""

    connect_timeout_s: float = 3.0
    access_key: str | None = field(default=None, repr=False)
    """With ``secret_key``: requests are signed."""
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    use_tls: bool = False
    tls_ca_file: str | None = None
    """PEM file of the authorities to trust; None means the system's."""
    tls_cert_file: str | None = None
    """PEM file of this client's certificate chain, for servers that ask for one."""
    tls_key_file: str | None = None
    """PEM file of its private key; None means that the key is in ``tls_cert_file``."""
    tls_key_password: str | None = field(default=None, repr=False)
    tls_verify_certificate: bool = True
    """False accepts any certificate, as the Java client does in its test mode (its default)."""
    tls_verify_hostname: bool = True
    """False accepts a trusted certificate that was made for another host."""

    @classmethod
    def of(cls, options: ConnectionOptions) -> ConnectionSettings:
        """The settings that the options of a source or a sink ask for."""
        return cls(
            access_key=options.access_key,
            secret_key=options.secret_key,
            security_token=options.security_token,
            use_tls=options.use_tls,
            tls_ca_file=options.tls_ca_file,
            tls_cert_file=options.tls_cert_file,
            tls_key_file=options.tls_key_file,
            tls_key_password=options.tls_key_password,
            tls_verify_certificate=options.tls_verify_certificate,
            tls_verify_hostname=options.tls_verify_hostname,
        )

    def open_pool(self, clock: Clock, handler_for: HandlerFor | None = None) -> ChannelPool:
        """Make a pool of channels with these settings; nothing is connected yet.

        Raises:
            OptionError: If a certificate or key file cannot be used.
        """
        return ChannelPool(
            clock,
            self.connect_timeout_s,
            handler_for,
            connect=self.connector(),
            signer=self.signer(),
        )

    def connector(self) -> Connect:
        """How connections are made: plain or with TLS.

        Raises:
            OptionError: If a certificate or key file cannot be used.
        """
        return _tls_connector(self).connect if self.use_tls else TcpTransport.connect

    def signer(self) -> Signer | None:
        """What signs requests; None without credentials."""
        if self.access_key is None or self.secret_key is None:
            return None
        return AclSigner(self.access_key, self.secret_key, self.security_token).sign


@lru_cache(maxsize=16)
def _tls_connector(settings: ConnectionSettings) -> TlsConnector:
    """One per process: a worker that opens a connection for every task must not read the files for each."""
    return TlsConnector(
        ca_file=settings.tls_ca_file,
        cert_file=settings.tls_cert_file,
        key_file=settings.tls_key_file,
        key_password=settings.tls_key_password,
        verify_certificate=settings.tls_verify_certificate,
        verify_hostname=settings.tls_verify_hostname,
    )
