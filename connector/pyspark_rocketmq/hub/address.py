"""Where a query's hub is and what proves that one may talk to it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from pyspark_rocketmq.errors import LocalProtocolError

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Host, port and key; its repr leaves the key out."""

    host: str
    port: int
    key: bytes = field(repr=False)

    @classmethod
    def new(cls, host: str, port: int) -> HubAddress:
        """An address with a random key."""
        return cls(host, port, secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """The reverse of :meth:`to_text`.

        Raises:
            LocalProtocolError: If it is not; the text is not shown.
        """
        place, _, key = text.rpartition("/")
        host, _, port = place.rpartition(":")
        try:
            return cls(host, int(port), bytes.fromhex(key))
        except ValueError:
            raise LocalProtocolError("The address of a query's hub is not HOST:PORT/KEY.") from None

    def to_text(self) -> str:
        """As an option can carry it: a secret."""
        return f"{self.host}:{self.port}/{self.key.hex()}"
