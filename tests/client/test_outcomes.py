"""Waiting for what becomes of a send never lasts for ever."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from pyspark_rocketmq.client.producer import attempts as outcomes
from pyspark_rocketmq.client.producer.attempts import next_outcome


def test_an_outcome_is_waited_for_though_it_comes_after_the_send_s_own_time() -> None:
    queue: SimpleQueue[str] = SimpleQueue()
    threading.Timer(0.05, queue.put, ("stored",)).start()

    assert next_outcome(queue, 0.0) == "stored"


def test_a_lost_callback_is_reported_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_LATE_S", 0.02)

    with pytest.raises(AssertionError, match="neither succeeded nor failed within"):
        next_outcome(SimpleQueue(), 0.0)
