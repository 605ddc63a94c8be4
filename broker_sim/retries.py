"""How often a message is tried again before it becomes a dead letter."""

from __future__ import annotations

from pyspark_rocketmq.wire.requests.topics import SubscriptionGroupConfig

_OLDEST_WITH_MAX_RECONSUME_TIMES = 121  # V3_4_9


def most_retries(group: SubscriptionGroupConfig, client_version: int, max_reconsume_times: int | None) -> int:
    """What the request says, if its client is new enough to say it, else what the group is configured with."""
    if max_reconsume_times is not None and client_version >= _OLDEST_WITH_MAX_RECONSUME_TIMES:
        return max_reconsume_times
    return group.retry_max_times
