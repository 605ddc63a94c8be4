"""The signature of RocketMQ's access control, the same for version 1.0 and 2.0.

Source: RocketMQ 5.3.3 ``AclClientRPCHook.doBeforeRequest``, ``AclUtils.combineRequestContent``, ``AclSigner``.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
"""Ext field with the user's name."""
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
"""Ext field of a temporary credential."""
SIGNATURE: Final = "Signature"
"""Ext field that signs the others and the body."""


def signature(secret_key: bytes, ext_fields: Mapping[str, str], body: bytes) -> str:
    """Base64(HMAC-SHA1(secretKey, values || body)).

    The values are those of all ext fields but Signature, in ascending order of their names, without separators.
    Code, opaque and version are not covered: a request can be replayed.
    """
    # Names are ASCII, so Java's order of UTF-16 units is the order of str.
    values = "".join([ext_fields[name] for name in sorted(ext_fields) if name != SIGNATURE])
    digest = hmac.digest(secret_key, values.encode() + body, "sha1")
    return base64.b64encode(digest).decode()
