"""Signed requests: RocketMQ's access control, the same for version 1.0 and 2.0."""

from __future__ import annotations

import base64
import hmac
from dataclasses import replace

from pyspark_rocketmq.wire.command import RemotingCommand


class AclSigner:
    """Adds ``AccessKey``, ``SecurityToken`` and ``Signature`` to a request's ext fields.

    The signature is Base64(HMAC-SHA1(secretKey, values || body)): the values of all ext fields but Signature,
    in ascending order of their names, without separators.  Code, opaque and version are not covered.

    Source: RocketMQ 5.3.3 ``AclClientRPCHook.doBeforeRequest``, ``AclUtils.combineRequestContent``, ``AclSigner``.
    """

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self._credentials = {"AccessKey": access_key}
        if security_token:
            self._credentials["SecurityToken"] = security_token
        self._secret = secret_key.encode()

    def sign(self, command: RemotingCommand) -> RemotingCommand:
        """The same command with credentials; its ext fields and body must not change afterwards."""
        fields = {**command.ext_fields, **self._credentials}
        # Names are ASCII, so Java's order of UTF-16 units is the order of str.
        values = "".join(fields[name] for name in sorted(fields))
        digest = hmac.digest(self._secret, values.encode() + command.body, "sha1")
        fields["Signature"] = base64.b64encode(digest).decode()
        return replace(command, ext_fields=fields)
