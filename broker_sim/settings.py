"""Settings of a simulated broker (``BrokerConfig``, ``MessageStoreConfig``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_sim.message_store import PullLimits
from broker_sim.topics import PERM_READ_WRITE

_DELAY_LEVELS_S = (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of one broker; the defaults are those of RocketMQ 5.3.3 unless documented otherwise."""

    default_queues: int = 8
    """Number of queues of TBW102, the template of topics that are created at their first message.

    Such a topic gets at most as many."""
    retention_bytes: int | None = None
    """Bytes of the commit log that are kept; None keeps everything."""
    retention_s: float | None = None
    """Time for which messages are kept (fileReservedTime); None for ever. The default of a real broker is 72
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
    """Whether a new message ends a pull that the broker holds because its queue had none.

    Otherwise such a pull is held for 1 s, whatever comes."""
    enable_property_filter: bool = False
    """Whether consumers may filter by SQL92."""
    use_server_side_reset_offset: bool = True
    """Whether an operator's reset of a group is kept until the answer to its next pull of the queue.

    Otherwise the group's members are notified of it immediately."""
    timer_wheel_enable: bool = True
    timer_max_delay_s: int = 3 * 24 * 3600
    transaction_timeout_s: float = 6.0
    """Age at which a producer is asked about a message whose transaction is open (transactionTimeOut)."""
    transaction_check_interval_s: float = 30.0
    """Time between two such questions about one message (transactionCheckInterval)."""
    transaction_check_max: int = 15
    """Number of questions after which such a message is given up (transactionCheckMax)."""
    slave_read_enable: bool = False
    """Whether replicas answer pulls, and masters send slow consumers to them."""
    in_memory_bytes: int | None = None
    """Newest bytes of the commit log that count as being in memory (accessMessageInMemoryMaxRatio); a pull of
    older ones counts as slow. None: no pull is slow."""
    lock_max_live_s: float = 60.0
    """Lifetime of a queue's lock without a refresh (rocketmq.broker.rebalance.lockMaxLiveTime)."""
    channel_expired_s: float = 120.0
    """Time without heartbeat after which a client is forgotten (channelExpiredTimeout)."""
    mirror_header_form: bool = False
    """Whether a request with a binary header gets a binary answer, as from older brokers; 5.3.3 always
    answers in JSON."""
