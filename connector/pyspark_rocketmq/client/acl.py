"""Signed requests: RocketMQ's access control, the same for version 1.0 and 2.0."""

from __future__ import annotations

from dataclasses import replace

from pyspark_rocketmq.wire.acl import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature
from pyspark_rocketmq.wire.command import RemotingCommand


class AclSigner:
    """Adds ``AccessKey``, ``SecurityToken`` and ``Signature`` to a request's ext fields."""

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._credentials = {ACCESS_KEY: access_key}
        if security_token:
            self._credentials[SECURITY_TOKEN] = security_token
        self._secret = secret_key.encode()

    def sign(self, command: RemotingCommand) -> RemotingCommand:
        """The same command with credentials; its ext fields and body must not change afterwards."""
        fields = {**command.ext_fields, **self._credentials}
        fields[SIGNATURE] = signature(self._secret, fields, command.body)
        return replace(command, ext_fields=fields)
