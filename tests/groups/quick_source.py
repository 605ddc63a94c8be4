"""The source with other intervals than RocketMQ's, so that a test need not wait minutes for a lock to expire.

The process that plans a query makes its reader itself, so the intervals come to it by the environment.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from pyspark_rocketmq.consume.duties import MembershipTiming
from pyspark_rocketmq.datasource.format import DefaultSource
from pyspark_rocketmq.datasource.stream_reader import RocketMQStreamReader

TIMING = "ROCKETMQ_TEST_GROUP_TIMING"
"""Environment variable: a JSON object with fields of :class:`MembershipTiming`."""


def timing_from(environment: Mapping[str, str]) -> MembershipTiming:
    """What the environment says, RocketMQ's intervals otherwise."""
    return MembershipTiming(**json.loads(environment.get(TIMING, "{}")))


class QuickReader(RocketMQStreamReader):
    """A reader whose member of the group has the intervals of the environment."""

    timing = timing_from(os.environ)


class QuickSource(DefaultSource):
    """``format("rocketmq")`` with such readers; says what its members do."""

    def streamReader(self, schema: Any) -> QuickReader:  # noqa: N802 - Spark's name
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        return QuickReader(self._read_options())
