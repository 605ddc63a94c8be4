"""What an operator can set on a simulated broker (``BrokerConfig``, ``MessageStoreConfig``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_sim.message_store import PullLimits
from broker_sim.topics import PERM_READ_WRITE

_DELAY_LEVELS_S = (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Defaults are those of RocketMQ 5.3.3 where a comment says nothing else."""

    default_queues: int = 8
    """Queues of TBW102, the most an automatically created topic gets."""
    retention_bytes: int | None = None
    """Bytes of the commit log that are kept; None keeps everything."""
    retention_s: float | None = None
    """How long messages are kept (fileReservedTime); None for ever, where a real broker deletes after 72
    hours."""
    pull_limits: PullLimits = field(default_factory=PullLimits)
    delay_levels_s: tuple[float, ...] = _DELAY_LEVELS_S
    """Seconds of delay level 1, 2 and so on (messageDelayLevel)."""
    max_message_size: int = 4 * 1024 * 1024
    broker_permission: int = PERM_READ_WRITE
    lite_pull_message_enable: bool = True
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    long_polling_enable: bool = True
    enable_property_filter: bool = False
    """Whether consumers may filter by SQL92."""
    use_server_side_reset_offset: bool = True
    """Whether a reset is answered to the next pull; else the group's members are told at once."""
    timer_wheel_enable: bool = True
    timer_max_delay_s: int = 3 * 24 * 3600
    transaction_timeout_s: float = 6.0
    """Age at which a half message is asked for (transactionTimeOut)."""
    transaction_check_interval_s: float = 30.0
    """Time between two questions for one (transactionCheckInterval)."""
    transaction_check_max: int = 15
    """After so many it is given up (transactionCheckMax)."""
    slave_read_enable: bool = False
    """Whether replicas answer pulls, and masters send slow consumers to them."""
    in_memory_bytes: int | None = None
    """Newest bytes of the commit log that count as being in memory (accessMessageInMemoryMaxRatio); who pulls
    further back is slow. None: nobody is."""
    lock_max_live_s: float = 60.0
    """How long a queue's lock lives without being refreshed (rocketmq.broker.rebalance.lockMaxLiveTime)."""
    channel_expired_s: float = 120.0
    """After how long without heartbeat a client is forgotten (channelExpiredTimeout)."""
    mirror_header_form: bool = False
    """Whether a request with a binary header gets a binary answer; 5.3.3 always answers in JSON, older
    brokers in kind."""
