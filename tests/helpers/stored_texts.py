"""Values of offset rows, made from the texts that stores keep."""

from __future__ import annotations

from pyspark_rocketmq.consume.generations import Boundaries
from pyspark_rocketmq.consume.metrics import MetricsSnapshot
from pyspark_rocketmq.consume.positions import ShownOffsets
from pyspark_rocketmq.offsets.recorded_sinks import RecordedSinks
from pyspark_rocketmq.stored_values import RememberedMessages, RetryCounts

messages = RememberedMessages.from_text
retries = RetryCounts.from_text
shown = ShownOffsets.from_text
speed = MetricsSnapshot.from_text
sinks = RecordedSinks.from_text
boundaries = Boundaries.from_text
