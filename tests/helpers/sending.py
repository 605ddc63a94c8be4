"""Sending on a busy machine: retry patiently, and wait until the messages can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from pyspark_rocketmq.client.producer.producer import Producer
from pyspark_rocketmq.client.producer.send_back import SendBackSettings
from tests.helpers.wait import PATIENCE_S, wait_until
from tests.real_broker import plain_remoting

_GET_BROKER_RUNTIME_INFO = 28
_GET_BROKER_CLUSTER_INFO = 106
_ADDRESS = re.compile(r'"([^"/ ]+:\d+)"')


@contextmanager
def patient_producer(name_servers: str) -> Iterator[Producer]:
    """Yield a producer that never gives up a send, since it may be stored all the same;
    its messages can be read when the block ends.
    """
    with Producer(name_servers, "tests", send_timeout_s=PATIENCE_S) as producer:
        yield producer
    await_dispatched(name_servers)


def await_dispatched(name_servers: str) -> None:
    """Wait until all that was stored before can be read:
    a real broker enters it in its queues a moment later.
    """
    # The list of brokers is no JSON: it has bare integers for keys.
    listed = plain_remoting.call(name_servers, _GET_BROKER_CLUSTER_INFO).body.decode()
    addresses = _ADDRESS.findall(listed)
    assert addresses, f"no broker is listed: {listed}"
    for address in addresses:
        wait_until(partial(_has_dispatched, address), reason=f"All in queues at {address}")


def _has_dispatched(address: str) -> bool:
    answer = plain_remoting.call(address, _GET_BROKER_RUNTIME_INFO)
    # A real broker has no statistics in its first second and fails to answer.
    return answer.code == 0 and int(json.loads(answer.body)["table"]["dispatchBehindBytes"]) == 0


def send_back_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have consumers that start in this process wait for late brokers,
    so that messages given back are not sent a second time.
    """
    as_asked = SendBackSettings.of
    monkeypatch.setattr(
        SendBackSettings,
        "of",
        lambda options: replace(as_asked(options), back_timeout_s=PATIENCE_S, send_timeout_s=PATIENCE_S),
    )
