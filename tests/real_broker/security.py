"""What makes a cluster a secured one: the broker's access control,
and TLS that wants clients to prove themselves.

Names of properties: RocketMQ 5.3.3 ``AuthConfig``, ``TlsSystemConfig``.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.certificates import Certificate

ADMIN, ADMIN_SECRET = "harness-admin", "harness-admin-secret"
# The harness makes a broker register by code 25, which it does not sign.
_ACCESS_CONTROL = f"""\
authenticationEnabled=true
authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
authenticationWhitelist=25
authorizationWhitelist=25
initAuthenticationUser={{"username":"{ADMIN}","password":"{ADMIN_SECRET}"}}
innerClientAuthenticationCredentials={{"accessKey":"{ADMIN}","secretKey":"{ADMIN_SECRET}"}}
authorizationEnabled=true
authorizationProvider=org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider
authorizationMetadataProvider=org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificates of the servers, which require one of the same authority from their clients."""

    server: Certificate
    client: Certificate
    authority: Path

    def properties(self, mode: str) -> list[str]:
        """Java's command line options; ``mode`` is ``disabled``, ``permissive`` or ``enforcing``."""
        values = {
            "tls.test.mode.enable": "false",
            "tls.server.mode": mode,
            # Of a server as client: a broker speaks plainly with the name server.
            "tls.enable": "false",
            "tls.server.certPath": self.server.certificate,
            "tls.server.keyPath": self.server.key,
            "tls.server.trustCertPath": self.authority,
            "tls.server.authClient": "true",
            "tls.server.need.client.auth": "require",
        }
        return [f"-D{name}={value}" for name, value in values.items()]

    def client_context(self) -> ssl.SSLContext:
        """What a client needs that is let in."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.client.certificate, self.client.key)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Of a whole cluster: its brokers take only signed requests through TLS.

    The name server takes both kinds of connections and checks nobody, as that of 5.3.3 does. ``ADMIN`` may do
    everything.
    """

    tls: Tls
    name_server_mode: str = "permissive"
    """Its ``tls.server.mode``."""

    @property
    def broker_conf(self) -> str:
        """Further lines of ``broker.conf``."""
        return _ACCESS_CONTROL
