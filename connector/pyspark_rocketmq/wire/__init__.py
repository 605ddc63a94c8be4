"""RocketMQ's bytes and the values they stand for, without I/O.

Rule 1: every byte rule is in this folder.  Rule 2: no socket, thread, clock or random number.
Rule 3: bytes from a peer either decode or raise ``RemoteProtocolError`` (``StaticTopic`` for the route of a
static topic); a value to send that the protocol cannot carry raises ``LocalProtocolError``.
"""

from __future__ import annotations
