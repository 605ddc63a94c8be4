"""Topics of one broker (``TopicConfigManager``) and the rules for their names (``TopicValidator``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from broker_sim.bodies import TopicConfig
from pyspark_rocketmq.wire.namespace import SYSTEM_TOPICS

PERM_WRITE = 2
PERM_READ = 4
PERM_INHERIT = 1
PERM_READ_WRITE = PERM_READ | PERM_WRITE

AUTO_CREATE_TOPIC_KEY = "TBW102"
"""Template of the topics that are created at their first message."""

MOST_QUEUES = 1 << 16
"""Maximum number of queues of one topic; a real broker has no limit, and runs out of memory listing them."""

_LONGEST_TOPIC = 127
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_TOPICS_CLOSED_TO_PRODUCERS = frozenset(
    {
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(TopicConfig):
    """A topic on one broker; its attributes are stored and shown, but have no effect here."""

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.topic_name

    @property
    def is_readable(self) -> bool:
        """Whether consumers may pull."""
        return bool(self.perm & PERM_READ)

    @property
    def queue_nums(self) -> int:
        """Number of queue ids that a send may name: the larger of the numbers of read and write queues."""
        return max(self.read_queue_nums, self.write_queue_nums)

    def __str__(self) -> str:
        """Format the topic as Java does in remarks (``TopicConfig.toString``)."""
        perm = "".join(
            letter if self.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", PERM_INHERIT))
        )
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm}, topicFilterType={self.topic_filter_type}, "
            f"topicSysFlag={self.topic_sys_flag}, order={str(self.order).lower()}, "
            f"attributes={{{attributes}}}]"
        )


class TopicTable:
    """The topics of a broker, including TBW102 from the start."""

    def __init__(self, default_queues: int) -> None:
        self._topics: dict[str, Topic] = {}
        self.put(
            Topic(
                topic_name=AUTO_CREATE_TOPIC_KEY,
                read_queue_nums=default_queues,
                write_queue_nums=default_queues,
                perm=PERM_READ_WRITE | PERM_INHERIT,
            )
        )

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def find(self, topic: str) -> Topic | None:
        """Return the topic's configuration; None if the broker does not have the topic."""
        return self._topics.get(topic)

    def put(self, config: Topic) -> None:
        """Create or replace a topic."""
        self._topics[config.name] = config

    def delete(self, topic: str) -> None:
        """Forget a topic; one that does not exist is not an error."""
        self._topics.pop(topic, None)

    def create_for_send(self, topic: str, default_topic: str, queue_nums: int) -> Topic | None:
        """Create a topic at its first message; ``default_topic`` is the template.

        The topic gets ``queue_nums`` queues, but at most as many as the template has write queues. It has the
        template's permission without the inherit bit, so it is no template itself. Return None if the
        template is missing or lacks that bit.

        Source: ``TopicConfigManager.createTopicInSendMessageMethod``.
        """
        parent = self._topics.get(default_topic)
        if parent is None or not parent.perm & PERM_INHERIT:
            return None
        nums = max(0, min(queue_nums, parent.write_queue_nums))
        config = Topic(
            topic_name=topic, read_queue_nums=nums, write_queue_nums=nums, perm=parent.perm & ~PERM_INHERIT
        )
        self.put(config)
        return config

    def ensure(self, topic: str, queue_nums: int) -> Topic:
        """Return a topic; create it with ``queue_nums`` queues if it is missing, as for retries.

        Source: ``TopicConfigManager.createTopicInSendMessageBackMethod``; the name is not checked.
        """
        config = self._topics.get(topic)
        if config is None:
            config = Topic(topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums)
            self.put(config)
        return config


def name_problem(topic: str) -> str | None:
    """Return why the name is not a valid topic name, in the broker's words; None if it is."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _LEGAL_NAME.fullmatch(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > _LONGEST_TOPIC:
        return "The specified topic is longer than topic max length."
    return None


def is_system_topic(topic: str) -> bool:
    """Whether the topic is one of the broker's own, by its name."""
    return topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_")


def is_closed_to_producers(topic: str) -> bool:
    """Whether sending to the topic is forbidden (``TopicValidator.isNotAllowedSendTopic``)."""
    return topic in _TOPICS_CLOSED_TO_PRODUCERS
