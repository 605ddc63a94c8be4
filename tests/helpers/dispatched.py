"""A real broker enters what it has stored in its queues a moment later; until then nobody can read it."""

from __future__ import annotations

import json
import re

from tests.helpers.wait import wait_until
from tests.real_broker import plain_remoting

_GET_BROKER_RUNTIME_INFO = 28
_GET_BROKER_CLUSTER_INFO = 106
_ADDRESS = re.compile(r'"([^"/ ]+:\d+)"')


def await_dispatched(name_servers: str) -> None:
    """Wait until all that was stored before can be read."""
    # The list of brokers is no JSON: it has bare integers for keys.
    listed = plain_remoting.call(name_servers, _GET_BROKER_CLUSTER_INFO).body.decode()
    for address in _ADDRESS.findall(listed):
        wait_until(lambda at=address: _bytes_behind(at) == 0, reason=f"All in queues at {address}")


def _bytes_behind(address: str) -> int:
    answer = plain_remoting.call(address, _GET_BROKER_RUNTIME_INFO)
    return int(json.loads(answer.body)["table"]["dispatchBehindBytes"])
