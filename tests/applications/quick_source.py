"""The source with other intervals than RocketMQ's,
so that a test need not wait minutes for a lock to expire.
"""

from __future__ import annotations

import logging

from pyspark.sql.types import StructType

from pyspark_rocketmq.consume.membership import MembershipTiming
from pyspark_rocketmq.format import DefaultSource
from pyspark_rocketmq.source.readers import RocketMQStreamReader


def source_with(timing: MembershipTiming) -> type[DefaultSource]:
    """Return ``format("rocketmq")`` with these intervals for members of groups, which log what they do.

    The class is local, so it is pickled by value, and takes the intervals along to Spark's processes.
    """
    intervals = timing

    class QuickReader(RocketMQStreamReader):
        timing = intervals

    class QuickSource(DefaultSource):
        def streamReader(self, schema: StructType) -> QuickReader:  # noqa: N802 - Spark's name
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
            return QuickReader(self._read_options())

    return QuickSource
