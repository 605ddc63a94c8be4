"""A few seconds of ``make stress``."""

from __future__ import annotations

import random

from tests.source.stress import stress


def test_every_message_that_is_there_is_read_once_whatever_happens() -> None:
    """A2, F4, H3, H4, failOnDataLoss, topicPattern: queues in order,
    over restarts of the query and of brokers.
    """
    seed = random.SystemRandom().randrange(1 << 32)

    problems, facts = stress(seed, seconds=3.0)

    assert problems == [], f"make stress SEED={seed}"
    assert facts["read"] > 0, f"make stress SEED={seed}: {facts}"
